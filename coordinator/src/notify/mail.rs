//! A message as a mail: <https://www.rfc-editor.org/rfc/rfc5322>, in plain text.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use jiff::{Timestamp as Moment, fmt::rfc2822::DateTimePrinter};
use muster_core::{fleet::notify::Message, time::Timestamp};

use super::{body, mailbox::Mailbox};

/// Characters of a subject. Mail programs show fewer, and the text has all.
const SUBJECT_MAX: usize = 200;

/// Bytes of one encoded word. In base64, with its frame and behind `Subject: `, that is a line of 73 characters, of which 76 are
/// allowed: <https://www.rfc-editor.org/rfc/rfc2047#section-2>.
const WORD_MAX: usize = 39;

/// Characters of a line of base64: <https://www.rfc-editor.org/rfc/rfc2045#section-6.8>.
const LINE: usize = 76;

/// A line of text that is longer is encoded. A server may break lines beyond 998.
const TEXT_LINE_MAX: usize = 900;

/// The whole mail, its lines ended by CR and LF. A message that comes again has the same Message-ID. `dropped`: notices that
/// its readers will never get.
pub(super) fn of(
    mailbox: &Mailbox,
    cluster: &str,
    message: &Message,
    dropped: u64,
    now: Timestamp,
) -> Vec<u8> {
    let domain = { mailbox.from.rsplit_once('@') }.map_or("localhost", |(_, domain)| domain);
    let text = body::text(cluster, message, dropped);
    let is_plain = { text.lines() }
        .all(|line| line.is_ascii() && line.len() <= TEXT_LINE_MAX && !line.contains('\r'));
    let (encoding, text) = match is_plain {
        true => ("7bit", text.lines().collect::<Vec<_>>().join("\r\n")),
        false => ("base64", in_base64(&text)),
    };
    let headers = [
        ("Date", date(now)),
        ("From", format!("Muster <{}>", mailbox.from)),
        ("To", recipients(mailbox, message).join(",\r\n ")),
        ("Subject", subject(&body::title(cluster, message))),
        ("Message-ID", format!("<muster.{}@{domain}>", message.id())),
        // No answer of a machine is wanted: <https://www.rfc-editor.org/rfc/rfc3834#section-5>.
        ("Auto-Submitted", "auto-generated".to_owned()),
        ("MIME-Version", "1.0".to_owned()),
        ("Content-Type", "text/plain; charset=utf-8".to_owned()),
        ("Content-Transfer-Encoding", encoding.to_owned()),
    ];
    let headers = headers.map(|(name, value)| format!("{name}: {value}\r\n"));
    format!("{}\r\n{text}\r\n", headers.concat()).into_bytes()
}

/// To whom it goes: where jobs have asked for it, to the address that they name.
pub(super) fn recipients<'a>(mailbox: &'a Mailbox, message: &'a Message) -> Vec<&'a str> {
    match &message.to {
        Some(to) => vec![to],
        None => mailbox.to.iter().map(String::as_str).collect(),
    }
}

fn in_base64(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let encoded = BASE64.encode(lines.join("\r\n"));
    let lines = encoded.as_bytes().chunks(LINE);
    let lines: Vec<&str> = lines.filter_map(|line| str::from_utf8(line).ok()).collect();
    lines.join("\r\n")
}

/// A text as the value of a header. Nothing in it can begin another header.
fn subject(title: &str) -> String {
    let plain = title.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut plain: String = plain.collect();
    if let Some((at, _)) = plain.char_indices().nth(SUBJECT_MAX) {
        plain.truncate(at);
        plain.push_str("...");
    }
    if plain.is_ascii() && !plain.contains("=?") {
        return plain;
    }
    let (mut words, mut word) = (Vec::new(), String::new());
    for c in plain.chars() {
        if word.len() + c.len_utf8() > WORD_MAX {
            words.push(std::mem::take(&mut word));
        }
        word.push(c);
    }
    words.push(word);
    let words = words
        .iter()
        .map(|word| format!("=?UTF-8?B?{}?=", BASE64.encode(word)));
    words.collect::<Vec<_>>().join("\r\n ")
}

fn date(now: Timestamp) -> String {
    let us = i64::try_from(now.0).unwrap_or(i64::MAX);
    let moment = Moment::from_microsecond(us).unwrap_or(Moment::UNIX_EPOCH);
    let printed = DateTimePrinter::new().timestamp_to_string(&moment);
    printed.unwrap_or_else(|_| "Thu, 1 Jan 1970 00:00:00 -0000".to_owned())
}

#[cfg(test)]
mod tests {
    use muster_core::fleet::notify::{Kind, Notice};

    use super::*;
    use crate::notify::mailbox::{MailServer, StartTls};

    const AT: Timestamp = Timestamp(1_700_000_000_000_000);

    fn mailbox() -> Mailbox {
        Mailbox {
            server: MailServer::parse("smtp://mail").unwrap(),
            start_tls: StartTls::Required,
            from: "muster@example.org".into(),
            to: vec!["ann@example.org".into(), "bob@example.org".into()],
            login: None,
        }
    }

    fn message(sentence: &str) -> Message {
        Message {
            number: 7,
            receiver: "ops".into(),
            of_jobs: false,
            to: None,
            kind: Kind::JobFailed,
            first: AT,
            due: AT,
            count: 1,
            notices: vec![Notice {
                error: Some("ValueError: bad shape".into()),
                culprit: Some("rank 3 on b".into()),
                ..Notice::new(Kind::JobFailed, AT, sentence)
            }],
        }
    }

    fn mail(sentence: &str) -> String {
        let mail = of(&mailbox(), "lab", &message(sentence), 2, AT);
        String::from_utf8(mail).unwrap()
    }

    #[test]
    fn a_plain_mail_can_be_read_as_it_is() {
        let must = "Date: Tue, 14 Nov 2023 22:13:20 -0000\r
From: Muster <muster@example.org>\r
To: ann@example.org,\r
 bob@example.org\r
Subject: [lab] digits: rank 3 failed\r
Message-ID: <muster.60a24181e4000-7@example.org>\r
Auto-Submitted: auto-generated\r
MIME-Version: 1.0\r
Content-Type: text/plain; charset=utf-8\r
Content-Transfer-Encoding: 7bit\r
\r
[lab] digits: rank 3 failed\r
  culprit: rank 3 on b\r
  error: ValueError: bad shape\r
2 notices before these could not be delivered (muster events)\r
";
        assert_eq!(mail("digits: rank 3 failed"), must);
    }

    #[test]
    fn a_mail_that_a_job_asks_for_goes_to_its_address_alone() {
        let mailbox = mailbox();
        let message = Message {
            of_jobs: true,
            to: Some("eve@example.org".into()),
            ..message("digits: rank 3 failed")
        };
        assert_eq!(recipients(&mailbox, &message), ["eve@example.org"]);
        let mail = String::from_utf8(of(&mailbox, "lab", &message, 0, AT)).unwrap();
        assert!(
            mail.contains("\r\nTo: eve@example.org\r\nSubject: "),
            "{mail}"
        );
        assert!(!mail.contains("ann@"), "{mail}");
        assert!(
            mail.ends_with("\r\nYou get this because the job asks for it (spec.notify).\r\n"),
            "{mail}"
        );
    }

    #[test]
    fn other_letters_are_encoded_and_come_back() {
        let sentence = format!("größer: {}", "ж".repeat(120));
        let mail = mail(&sentence);
        assert!(mail.is_ascii());
        assert!(mail.lines().all(|line| line.len() <= 76), "{mail}");
        let (head, text) = mail.split_once("\r\n\r\n").unwrap();
        let subject = head.split("Subject: ").nth(1).unwrap();
        let subject = subject.split("\r\nMessage-ID").next().unwrap();
        let words = subject.split("\r\n ").map(|word| {
            let word = word.strip_prefix("=?UTF-8?B?").unwrap();
            String::from_utf8(BASE64.decode(word.strip_suffix("?=").unwrap()).unwrap()).unwrap()
        });
        assert_eq!(words.collect::<String>(), format!("[lab] {sentence}"));
        let text = BASE64.decode(text.replace("\r\n", "")).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with(&format!("[lab] {sentence}\r\n  culprit: ")),
            "{text}"
        );
    }

    #[test]
    fn a_sentence_begins_no_header_and_is_cut() {
        let evil = mail("x\u{7}\tBcc: eve@example.org =?UTF-8?B?eA==?=");
        let (head, _) = evil.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("Bcc"), "{head}");
        let broken = subject("x\r\nBcc: eve@example.org");
        assert_eq!(broken, "x  Bcc: eve@example.org");
        let long = mail(&"word ".repeat(300));
        let subject = long
            .lines()
            .find(|line| line.starts_with("Subject: "))
            .unwrap();
        assert!(subject.ends_with("...") && subject.len() < 220, "{subject}");
    }
}
