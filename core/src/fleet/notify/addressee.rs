//! To whom a message goes, and who wants that. Each addressee has messages of its own, so what jobs ask for neither fills the
//! operator's messages nor delays them.

/// Who gets a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addressee {
    pub receiver: String,
    /// A job has asked for it, and no rule of the operator.
    pub of_jobs: bool,
    /// The address of mail that a job has named. `None`: the receiver as the operator has set it up.
    pub to: Option<String>,
}

impl Addressee {
    pub fn of_operator(receiver: &str) -> Self {
        Self {
            receiver: receiver.to_owned(),
            of_jobs: false,
            to: None,
        }
    }

    /// The receiver as a job names it.
    pub fn of_jobs(receiver: &str) -> Self {
        Self {
            of_jobs: true,
            ..Self::of_operator(receiver)
        }
    }

    /// An address that a job names, and the receiver that mails it. Servers take letters of both cases for the same mailbox.
    pub fn by_mail(receiver: &str, to: &str) -> Self {
        Self {
            to: Some(to.to_ascii_lowercase()),
            ..Self::of_jobs(receiver)
        }
    }
}
