//! A disk that does not answer, as an agent sees it. The drills use it too.

use std::fs;

/// As long as this lives, the agent's next write of its ledger waits: the thread that writes it is
/// stopped. Only the thread that has made this may drop it.
pub(crate) struct SlowDisk(libc::pid_t);

impl SlowDisk {
    /// `agent`: the agent's process.
    pub(crate) fn of(agent: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{agent}/task")).unwrap();
        let writes = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "ledger")
        };
        let thread = { threads.flatten() }.find(writes).unwrap();
        let thread = thread.file_name().to_string_lossy().parse().unwrap();
        trace(libc::PTRACE_SEIZE, thread);
        trace(libc::PTRACE_INTERRUPT, thread);
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        #[allow(unsafe_code)]
        let stopped = unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
        assert_eq!(stopped, thread);
        Self(thread)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        trace(libc::PTRACE_DETACH, self.0);
    }
}

/// Stops or releases one thread.
fn trace(request: libc::c_uint, thread: libc::pid_t) {
    // SAFETY: these requests use neither address nor data.
    #[allow(unsafe_code)]
    let done = unsafe { libc::ptrace(request, thread, 0, 0) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
