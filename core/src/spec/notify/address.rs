//! Which addresses of mail are taken.

/// Characters of an address: <https://www.rfc-editor.org/rfc/rfc5321#section-4.5.3.1>.
pub const ADDRESS_MAX: usize = 254;

/// Why this is no address of mail. Only the plain form is taken, `ann@example.org`: what has quotes, comments or letters
/// beyond ASCII is read differently by different servers, and a space or a line's end would begin something else.
pub fn address_error(address: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_graphic() && !"()<>[]:;@\\,\"".contains(c);
    let part = |part: &str| {
        !part.is_empty()
            && part.chars().all(plain)
            && !part.starts_with('.')
            && !part.ends_with('.')
    };
    let is_one =
        { address.split_once('@') }.is_some_and(|(name, domain)| part(name) && part(domain));
    (!is_one || address.len() > ADDRESS_MAX)
        .then(|| format!("{address:?} is no address of mail, as ann@example.org"))
}

/// The same of an address that a job names. Some servers read `eve%evil.org@example.org` and `evil.org!eve@example.org` as
/// eve's mailbox at evil.org, which no list of allowed domains would notice: <https://www.rfc-editor.org/rfc/rfc5321#appendix-C>.
/// With a `+` a mailbox would have many names, and whoever reads it a message a minute for each of them.
pub fn job_address_error(address: &str) -> Option<String> {
    address_error(address).or_else(|| {
        let why = match () {
            () if address.contains(['%', '!']) => {
                "has % or !, by which some servers pass a mail on to another domain"
            }
            () if address.contains('+') => {
                "has a +; name the mailbox itself, without what stands behind its name"
            }
            () => return None,
        };
        Some(format!("{address:?} {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_can_hide_no_command() {
        for good in [
            "ann@example.org",
            "o'neil+gpu@x-y.example",
            "root@localhost",
        ] {
            assert_eq!(address_error(good), None);
        }
        for bad in [
            "ann",
            "@example.org",
            "ann@",
            "ann@a@b",
            "ann@example.org>\r\nRCPT TO:<eve@x",
            "Ann <ann@example.org>",
            "a b@example.org",
            "ä@example.org",
            ".@x",
        ] {
            assert!(address_error(bad).is_some(), "{bad}");
        }
        assert!(address_error(&format!("{}@x", "a".repeat(300))).is_some());
    }

    #[test]
    fn a_job_can_name_no_way_through_an_allowed_domain() {
        assert_eq!(job_address_error("o'neil@example.org"), None);
        for bad in [
            "eve%evil.org@example.org",
            "evil.org!eve@example.org",
            "eve@evil.org!example.org",
            "ann+1@example.org",
            "ann@",
        ] {
            assert!(job_address_error(bad).is_some(), "{bad}");
        }
    }
}
