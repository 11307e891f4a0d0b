//! To whom a message goes, and who wants that. Each person has messages of its own, so what jobs ask for neither fills the
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

    /// The same without what stands behind a `+` in the name of a mailbox: `ann+gpu@example.org` is read by ann, who is to get
    /// no more messages by many such names.
    pub(super) fn person(&self) -> Self {
        let bare = |to: &String| {
            let (name, domain) = mailbox(to);
            format!("{name}@{domain}")
        };
        Self {
            to: self.to.as_ref().map(bare),
            ..self.clone()
        }
    }

    /// The address has nothing that [`Addressee::person`] leaves out.
    pub(super) fn is_bare(&self) -> bool {
        let bare = |to: &String| {
            let (name, domain) = mailbox(to);
            name.len() + 1 + domain.len() == to.len()
        };
        self.to.as_ref().is_none_or(bare)
    }
}

/// The name and the domain of the person who reads an address.
pub(super) fn mailbox(to: &str) -> (&str, &str) {
    let (name, domain) = to.split_once('@').unwrap_or((to, ""));
    match name.split_once('+') {
        Some((name, _)) if !name.is_empty() => (name, domain),
        _ => (name, domain),
    }
}
