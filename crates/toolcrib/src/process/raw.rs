//! All unsafe code for processes on Unix: what a child does between fork and exec, the fork, the signals and the code pages of a
//! shim, and functions of the C library for the environment and for memory.

#![expect(
    unsafe_code,
    reason = "std and rustix have no safe form of `pre_exec`, `execve`, `clone` and signal masks"
)]

use std::ffi::{CStr, CString, OsString, c_char};
use std::io;
#[cfg(target_os = "linux")]
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

#[cfg(target_os = "linux")]
use rustix::process::{Pid, WaitOptions};

/// Makes the child run `before_exec` and then execute `image`. `before_exec` may only make system calls, because
/// another thread may have held any lock during the fork.
pub(super) fn exec_after(
    command: &mut Command,
    image: ExecImage,
    mut before_exec: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    let hook = move || {
        before_exec()?;
        reset_signals();
        Err(image.exec())
    };
    // SAFETY: the child allocates nothing and takes no lock, as required of `before_exec`.
    unsafe { command.pre_exec(hook) };
}

/// The stack of a child until it executes its program.
#[cfg(target_os = "linux")]
const CHILD_STACK: usize = 64 << 10;

/// What a child that shares the memory of its parent does.
#[cfg(target_os = "linux")]
struct ChildStart<'a, F> {
    image: &'a ExecImage,
    before_exec: F,
    /// Gets the error number if the start fails; closed by the execution of the program.
    errors: io::PipeWriter,
}

#[cfg(target_os = "linux")]
impl<F: FnMut() -> io::Result<()>> ChildStart<'_, F> {
    extern "C" fn run(start: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `spawn_sharing_memory` passes this value, and does not run until this process has executed its program or exited.
        let start = unsafe { &mut *start.cast::<Self>() };
        let error = match (start.before_exec)() {
            Ok(()) => {
                reset_signals();
                start.image.exec()
            }
            Err(error) => error,
        };
        let number = error.raw_os_error().unwrap_or(libc::EINVAL);
        // Fails only if the parent has died.
        let _ = start.errors.write_all(&number.to_ne_bytes());
        // SAFETY: ends only this process, without what the parent does at its end.
        unsafe { libc::_exit(127) }
    }
}

/// Starts a child that runs `before_exec` and then executes `image`, and returns its pid. The child shares the memory of this
/// process: a fork would copy page tables and then the pages that either of the two writes, which takes 0.25 ms of CPU. This process
/// must have one thread, and waits until the child has executed its program or exited. `before_exec` may only make system calls.
#[cfg(target_os = "linux")]
pub(super) fn spawn_sharing_memory<F: FnMut() -> io::Result<()>>(
    image: &ExecImage,
    before_exec: F,
) -> io::Result<i32> {
    // Emulators of other processors fork instead, so an error cannot be returned through memory.
    let (mut errors, errors_writer) = io::pipe()?;
    let mut stack = Vec::<u128>::with_capacity(CHILD_STACK / size_of::<u128>());
    let stack_end = stack.spare_capacity_mut().as_mut_ptr_range().end;
    let mut start = ChildStart { image, before_exec, errors: errors_writer };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this process does not run until the child no longer uses its stack, `start` or any other memory of this process.
    let child =
        unsafe { libc::clone(ChildStart::<F>::run, stack_end.cast(), flags, (&raw mut start).cast()) };
    if child == -1 {
        return Err(io::Error::last_os_error());
    }
    drop(start);
    let mut number = [0; size_of::<i32>()];
    match errors.read_exact(&mut number) {
        Ok(()) => {
            // Fails only if the child was waited for elsewhere.
            let _ = rustix::process::waitpid(Pid::from_raw(child), WaitOptions::empty());
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
        }
        // Nothing was written.
        Err(_) => Ok(child),
    }
}

/// Clears the signal mask, which a shim has set for itself, and restores the default action of SIGPIPE, which the Rust runtime
/// ignores.
fn reset_signals() {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is used, and no handler is installed.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigemptyset(signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), std::ptr::null_mut());
    }
}

/// A program to execute: candidate paths, arguments and environment.
pub(super) struct ExecImage {
    paths: Vec<CString>,
    args: CStringArray,
    env: CStringArray,
}

/// Strings with a null-terminated array of pointers to them, as `execve` takes it.
struct CStringArray {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

// SAFETY: the pointers refer to strings that the same value owns and never changes.
unsafe impl Send for CStringArray {}
// SAFETY: as above.
unsafe impl Sync for CStringArray {}

impl CStringArray {
    fn new(strings: Vec<OsString>) -> io::Result<Self> {
        let strings =
            strings.into_iter().map(|text| CString::new(text.into_vec())).collect::<Result<Vec<_>, _>>()?;
        let pointers = strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { pointers, _strings: strings })
    }
}

impl ExecImage {
    pub(super) fn new(paths: Vec<OsString>, args: Vec<OsString>, env: Vec<OsString>) -> io::Result<Self> {
        let paths = paths.into_iter().map(|path| CString::new(path.into_vec()));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { paths, args: CStringArray::new(args)?, env: CStringArray::new(env)? })
    }

    /// Executes the first path that can be executed. Unlike `execvp`, it never falls back to a shell.
    fn exec(&self) -> io::Error {
        let mut denied = None;
        for path in &self.paths {
            // SAFETY: the path ends with a null byte, the arrays with a null pointer, and all outlive the call.
            unsafe { libc::execve(path.as_ptr(), self.args.pointers.as_ptr(), self.env.pointers.as_ptr()) };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => denied = Some(error),
                _ => return error,
            }
        }
        denied.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }
}

/// Removes a variable from the environment and overwrites its value, which other processes could read in `/proc` otherwise.
/// Returns the value. Does nothing if another thread may use the environment, or that cannot be found out.
pub(super) fn take_variable(name: &CStr) -> Option<Vec<u8>> {
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
        return None;
    }
    // SAFETY: there is no other thread. The value ends with a null byte, is not used after it was removed, and may be written to.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        let bytes = CStr::from_ptr(value).to_bytes().to_vec();
        std::ptr::write_bytes(value, 0, bytes.len());
        libc::unsetenv(name.as_ptr());
        Some(bytes)
    }
}

/// Returns memory that the allocator keeps for later to the system, and makes code that may not be needed again not resident.
pub(super) fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes only the locks of the allocator.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "linux")]
    CodePages::find().drop_resident();
}

/// The segments of this program and its libraries that are never written: code and constants.
#[cfg(target_os = "linux")]
pub(super) struct CodePages {
    segments: Vec<CodeSegment>,
}

#[cfg(target_os = "linux")]
struct CodeSegment {
    start: usize,
    length: usize,
}

#[cfg(target_os = "linux")]
impl CodePages {
    pub(super) fn find() -> Self {
        let mut pages = Self { segments: Vec::new() };
        // SAFETY: the callback has the declared type, and the loader calls it only during this call, with this pointer.
        unsafe { libc::dl_iterate_phdr(Some(Self::add_object), (&raw mut pages).cast()) };
        pages
    }

    /// # Safety
    /// `object` must be an object from the loader, `pages` the value that `find` passes.
    unsafe extern "C" fn add_object(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        pages: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: as required of the caller; an object has `dlpi_phnum` headers.
        unsafe {
            let object = &*object;
            let pages = &mut *pages.cast::<Self>();
            let headers = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
            let page_size = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let constant =
                headers.iter().filter(|it| it.p_type == libc::PT_LOAD && it.p_flags & libc::PF_W == 0);
            pages.segments.extend(constant.map(|header| {
                let address = (object.dlpi_addr + header.p_vaddr) as usize;
                let start = address - address % page_size;
                CodeSegment { start, length: address + header.p_memsz as usize - start }
            }));
        }
        0
    }

    /// Makes the pages not resident. Those that are used again are mapped again from the files, so that a process which waits
    /// most of the time keeps only what its loop needs. Uses as little code as it can, because that comes back first.
    pub(super) fn drop_resident(&self) {
        for segment in &self.segments {
            let start = std::ptr::with_exposed_provenance_mut(segment.start);
            // SAFETY: the segment is mapped from a file, privately, and never written, so its content can be read again.
            // An error leaves the pages as they are.
            let _ = unsafe { rustix::mm::madvise(start, segment.length, rustix::mm::Advice::LinuxDontNeed) };
        }
    }
}

/// Makes all threads allocate from two arenas.
pub(super) fn use_two_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number that the allocator reads when a thread allocates for the first time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Marks all file descriptors except stdin, stdout and stderr as close-on-exec.
#[cfg(target_os = "linux")]
pub(super) fn close_others_on_exec() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: only sets flags; kernels without the call return an error and change nothing.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// The process in which [`fork_sibling`] returns.
#[cfg(target_os = "linux")]
pub(super) enum ForkedProcess {
    Parent { child: i32 },
    Child,
}

/// Forks this process, which must have one thread. The new process is a child of the parent of this one, or of this one where the
/// system does not support that: emulators of other processors and some sandboxes.
#[cfg(target_os = "linux")]
pub(super) fn fork_sibling() -> io::Result<ForkedProcess> {
    match clone_process(libc::CLONE_PARENT) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) => {
            clone_process(0)
        }
        result => result,
    }
}

#[cfg(target_os = "linux")]
fn clone_process(flags: libc::c_int) -> io::Result<ForkedProcess> {
    const NONE: usize = 0;
    // SAFETY: without `CLONE_VM` the child gets a copy of all memory and, with no other stack, goes on where this process is.
    // There is no other thread that could hold a lock.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, NONE, NONE, NONE, NONE) };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(ForkedProcess::Child),
        child => Ok(ForkedProcess::Parent { child: i32::try_from(child).map_err(io::Error::other)? }),
    }
}

/// Lets the system wait for the children of this process.
#[cfg(target_os = "linux")]
pub(super) fn discard_children() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Blocks every signal that can be blocked.
#[cfg(target_os = "linux")]
pub(super) fn block_signals() {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is used.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, signals.as_ptr(), std::ptr::null_mut());
    }
}

/// Blocks every signal that can be blocked and returns a descriptor that becomes readable on SIGCHLD.
#[cfg(target_os = "linux")]
pub(super) fn watch_sigchld_only() -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd as _, OwnedFd};
    block_signals();
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is used, and the new descriptor has no other owner.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGCHLD);
        match libc::signalfd(-1, signals.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            file => Ok(OwnedFd::from_raw_fd(file)),
        }
    }
}
