//! All unsafe code for Windows: job objects, which std does not have.

#![expect(unsafe_code, reason = "std has no job objects and cannot resume a thread")]

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;

use tokio::process::Child;
use windows_sys::Win32::Foundation::INVALID_HANDLE_VALUE;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation, SetInformationJobObject,
    TerminateJobObject,
};
use windows_sys::Win32::System::Threading::{OpenThread, ResumeThread, THREAD_SUSPEND_RESUME};

/// The exit status of processes that are terminated with their job.
const TERMINATED: u32 = 1;

/// A job object. Its processes end when its handle is closed, however this process ends.
#[derive(Debug)]
pub(super) struct Job {
    handle: OwnedHandle,
}

impl Job {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the job has no attributes and no name, and the new handle has no other owner.
        let job = unsafe {
            let handle = CreateJobObjectW(ptr::null(), ptr::null());
            if handle.is_null() {
                return Err(io::Error::last_os_error());
            }
            Self { handle: OwnedHandle::from_raw_handle(handle) }
        };
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
        // SAFETY: the pointer and the length describe `limits`, which outlives the call.
        let set = unsafe {
            SetInformationJobObject(
                job.handle.as_raw_handle(),
                JobObjectExtendedLimitInformation,
                ptr::from_ref(&limits).cast(),
                u32::try_from(size_of_val(&limits)).unwrap_or(u32::MAX),
            )
        };
        if set == 0 { Err(io::Error::last_os_error()) } else { Ok(job) }
    }

    /// Adds a child that was started suspended, and lets it run.
    pub(super) fn adopt(&self, child: &Child) -> io::Result<()> {
        let process = child.raw_handle().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: both handles are open during the call.
        if unsafe { AssignProcessToJobObject(self.handle.as_raw_handle(), process) } == 0 {
            return Err(io::Error::last_os_error());
        }
        resume(child.id().ok_or(io::ErrorKind::NotFound)?)
    }

    /// Terminates all processes of the job.
    pub(super) fn terminate(&self) {
        // SAFETY: the handle is open. A job without processes is not an error.
        unsafe { TerminateJobObject(self.handle.as_raw_handle(), TERMINATED) };
    }
}

/// Resumes the threads of a process that was started suspended. It has one.
fn resume(pid: u32) -> io::Result<()> {
    // SAFETY: the new handle has no other owner.
    let snapshot = unsafe {
        let handle = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
        if handle == INVALID_HANDLE_VALUE {
            return Err(io::Error::last_os_error());
        }
        OwnedHandle::from_raw_handle(handle)
    };
    let mut entry = THREADENTRY32 {
        dwSize: u32::try_from(size_of::<THREADENTRY32>()).unwrap_or(u32::MAX),
        ..THREADENTRY32::default()
    };
    // SAFETY: the snapshot is open, and the entry says how large it is.
    let mut has_entry = unsafe { Thread32First(snapshot.as_raw_handle(), &raw mut entry) };
    while has_entry != 0 {
        if entry.th32OwnerProcessID == pid {
            return resume_thread(entry.th32ThreadID);
        }
        // SAFETY: as above.
        has_entry = unsafe { Thread32Next(snapshot.as_raw_handle(), &raw mut entry) };
    }
    Err(io::ErrorKind::NotFound.into())
}

fn resume_thread(id: u32) -> io::Result<()> {
    // SAFETY: the new handle has no other owner and is open while the thread is resumed.
    unsafe {
        let handle = OpenThread(THREAD_SUSPEND_RESUME, 0, id);
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        let thread = OwnedHandle::from_raw_handle(handle);
        if ResumeThread(thread.as_raw_handle()) == u32::MAX {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
