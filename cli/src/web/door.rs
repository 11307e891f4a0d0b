//! Who may see the pages: who opened a link of ours, in the browser in which it was opened.
//!
//! The port is on the loopback address, where every user of this machine can reach it, and so can every site that a browser shows. So a link
//! carries a ticket that is good for one browser, which gets a cookie for it. A request that names another host than this machine comes from
//! a site whose name was made to lead here, and is refused.

use std::sync::{Mutex, PoisonError};

/// What a browser says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Knock<'a> {
    pub(crate) host: Option<&'a str>,
    pub(crate) cookies: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It named another host.
    OtherHost,
    /// It has no cookie of ours, or one of another run.
    Unknown,
    /// Its ticket was used before, or never given out.
    BadTicket,
}

pub(crate) struct Door {
    /// Of the cookie. Cookies are shared by all ports of a host.
    name: String,
    value: String,
    ticket: Mutex<String>,
}

impl Door {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            name: format!("muster-{port}"),
            value: secret(),
            ticket: Mutex::new(secret()),
        }
    }

    /// The ticket for the next browser.
    pub(crate) fn ticket(&self) -> String {
        self.ticket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes a ticket, and returns the cookie that lets its browser in. Each ticket is taken once.
    pub(crate) fn open(&self, knock: Knock<'_>, ticket: &str) -> Result<String, Refusal> {
        is_here(knock)?;
        let mut known = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_same(&known, ticket) {
            return Err(Refusal::BadTicket);
        }
        *known = secret();
        Ok(format!(
            "{}={}; HttpOnly; SameSite=Lax; Path=/",
            self.name, self.value
        ))
    }

    pub(crate) fn may_enter(&self, knock: Knock<'_>) -> Result<(), Refusal> {
        is_here(knock)?;
        let cookies = knock.cookies.unwrap_or_default().split(';');
        let mut ours = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        match ours.any(|(name, value)| name == self.name && is_same(&self.value, value)) {
            true => Ok(()),
            false => Err(Refusal::Unknown),
        }
    }
}

/// Whether the request names this machine itself. A tunnel such as `ssh -L` may have another port.
fn is_here(knock: Knock<'_>) -> Result<(), Refusal> {
    let host = knock.host.ok_or(Refusal::OtherHost)?;
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    match name {
        "127.0.0.1" | "localhost" | "[::1]" => Ok(()),
        _ => Err(Refusal::OtherHost),
    }
}

/// 244 random bits.
fn secret() -> String {
    let half = || uuid::Uuid::new_v4().simple();
    format!("{}{}", half(), half())
}

/// Compares in a time that does not depend on where the two differ.
fn is_same(known: &str, given: &str) -> bool {
    let (known, given) = (known.as_bytes(), given.as_bytes());
    known.len() == given.len() && known.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Knock<'static> = Knock {
        host: Some("127.0.0.1:7071"),
        cookies: None,
    };

    #[test]
    fn a_ticket_lets_one_browser_in() {
        let door = Door::new(7071);
        let ticket = door.ticket();
        let cookie = door.open(HERE, &ticket).unwrap();
        let (pair, rules) = cookie.split_once(';').unwrap();
        assert!(rules.contains("HttpOnly") && rules.contains("SameSite"));
        let both = format!("theme=dark; {pair}");
        let knock = Knock {
            cookies: Some(&both),
            ..HERE
        };
        assert_eq!(door.may_enter(knock), Ok(()));
        assert_eq!(door.open(HERE, &ticket), Err(Refusal::BadTicket), "twice");
        assert_ne!(door.ticket(), ticket);
        assert!(door.open(HERE, &door.ticket()).is_ok(), "another browser");
    }

    #[test]
    fn who_has_no_cookie_of_this_run_stays_outside() {
        let (door, other) = (Door::new(7071), Door::new(7071));
        let cookie = other.open(HERE, &other.ticket()).unwrap();
        let pair = cookie.split(';').next();
        for cookies in [
            None,
            Some(""),
            Some("muster-7071"),
            Some("muster-7071="),
            pair,
        ] {
            let knock = Knock { cookies, ..HERE };
            assert_eq!(door.may_enter(knock), Err(Refusal::Unknown), "{cookies:?}");
        }
        for ticket in ["", "x", &door.value] {
            assert_eq!(door.open(HERE, ticket), Err(Refusal::BadTicket));
        }
    }

    #[test]
    fn a_name_that_was_made_to_lead_here_is_no_host_of_ours() {
        let door = Door::new(7071);
        let ticket = door.ticket();
        for host in [
            None,
            Some("evil.example"),
            Some("evil.example:7071"),
            Some("127.0.0.1.evil.example"),
            Some(""),
        ] {
            let knock = Knock {
                host,
                cookies: None,
            };
            assert_eq!(
                door.open(knock, &ticket),
                Err(Refusal::OtherHost),
                "{host:?}"
            );
            assert_eq!(door.may_enter(knock), Err(Refusal::OtherHost), "{host:?}");
        }
        for host in ["localhost", "localhost:9000", "[::1]:7071", "127.0.0.1"] {
            let knock = Knock {
                host: Some(host),
                cookies: None,
            };
            assert_eq!(door.may_enter(knock), Err(Refusal::Unknown), "{host}");
        }
    }
}
