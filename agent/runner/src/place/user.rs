//! Another user, as root starts a program of ours: `muster-runner as`.

/// What `muster-runner` is called with to become another user, before its other arguments.
pub const AS: &str = "as";
/// Before the name of the cgroup that it enters first.
pub const CGROUP: &str = "--cgroup";

/// Another user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Become {
    /// `UID:GID:GROUP,GROUP`.
    pub numbers: String,
    /// A cgroup to enter, which is made for that user where one can be made.
    pub cgroup: Option<String>,
}

impl Become {
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = vec![AS.to_owned(), self.numbers.clone()];
        if let Some(name) = &self.cgroup {
            args.extend([CGROUP.to_owned(), name.clone()]);
        }
        args
    }
}
