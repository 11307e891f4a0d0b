//! Named places at which a test kills this process. They exist only in unit tests; in every other
//! build the macro expands to nothing.
//!
//! A unit test starts its own program again as a coordinator, with
//! `MUSTER_TEST_FAILPOINT=NAME:COUNT` in its environment: the process ends by SIGKILL when it
//! passes that place for the COUNTth time.

#[cfg(test)]
pub(crate) mod tests;

macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(test)]
        $crate::failpoint::tests::pass($name);
    };
}
pub(crate) use failpoint;
