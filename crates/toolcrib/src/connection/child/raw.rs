//! All the unsafe code there is: what a child does between fork and exec, and how a shim hears of deaths.

#![expect(unsafe_code, reason = "std and rustix have no safe form of `pre_exec`, `execve` and signal masks")]

use std::ffi::{CString, OsString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Has the child call `happen` as its last deed before it becomes `image`. What `happen` does must be nothing but system
/// calls: another thread may have held any lock when the child was made.
pub(super) fn become_after(
    command: &mut Command,
    image: Image,
    mut happen: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    let last = move || {
        happen()?;
        hear_all();
        Err(image.exec())
    };
    // SAFETY: nothing is allocated and no lock is taken in the child, as asked of `happen`.
    unsafe { command.pre_exec(last) };
}

/// A signal that its parent did not want to hear, a server may want to.
fn hear_all() {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is made empty before it is used.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), std::ptr::null_mut());
    }
}

/// A program to become: where it may be, its arguments and its environment.
pub(super) struct Image {
    places: Vec<CString>,
    args: Strings,
    env: Strings,
}

/// Strings and the null-terminated list of them that the system wants.
struct Strings {
    list: Vec<*const c_char>,
    _owned: Vec<CString>,
}

// SAFETY: the pointers lead into strings that are owned beside them and never change.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new(strings: Vec<OsString>) -> io::Result<Self> {
        let owned =
            strings.into_iter().map(|text| CString::new(text.into_vec())).collect::<Result<Vec<_>, _>>()?;
        let list = owned.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { list, _owned: owned })
    }
}

impl Image {
    pub(super) fn new(places: Vec<OsString>, args: Vec<OsString>, env: Vec<OsString>) -> io::Result<Self> {
        let places = places.into_iter().map(|place| CString::new(place.into_vec()));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { places, args: Strings::new(args)?, env: Strings::new(env)? })
    }

    /// Becomes the first of its places that can be. Unlike `execvp` it does not hand to a shell what is no program.
    fn exec(&self) -> io::Error {
        let mut refused = None;
        for place in &self.places {
            // SAFETY: the place ends with a null byte, the lists with a null pointer, and all of them outlive the call.
            unsafe { libc::execve(place.as_ptr(), self.args.list.as_ptr(), self.env.list.as_ptr()) };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => refused = Some(error),
                _ => return error,
            }
        }
        refused.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }
}

/// Closes all files but the first three when a program is started.
#[cfg(target_os = "linux")]
pub(super) fn close_others_on_exec() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: only marks; systems that do not know the call leave everything as it was.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Ignores every signal that can be ignored from now on; the file can be read when a child has died.
#[cfg(target_os = "linux")]
pub(super) fn deaths_only() -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd as _, OwnedFd};
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is used, and the number is that of a file nobody else has.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::sigfillset(signals.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, signals.as_ptr(), std::ptr::null_mut());
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGCHLD);
        match libc::signalfd(-1, signals.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            file => Ok(OwnedFd::from_raw_fd(file)),
        }
    }
}
