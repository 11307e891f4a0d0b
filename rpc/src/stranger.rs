//! Sockets of another user, for tests.

use rustix::{process::Uid, thread::set_thread_res_uid};

pub(crate) const NOBODY: u32 = 65_534;

/// Runs `work` on a thread of another user. Returns `None` and prints a loud line if this process
/// is not root and may not do that.
pub(crate) fn as_nobody<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if crate::peer::own_user() != 0 {
        eprintln!("!!! not root: what happens to another user is NOT SHOWN");
        return None;
    }
    let nobody = Uid::from_raw(NOBODY);
    let thread = std::thread::spawn(move || {
        // This changes only this thread, which ends here.
        set_thread_res_uid(nobody, nobody, nobody).expect("root may become anybody");
        work()
    });
    Some(thread.join().expect("the other user's work is done"))
}
