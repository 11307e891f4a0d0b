//! One mail to one server, over SMTP: <https://www.rfc-editor.org/rfc/rfc5321>. It trusts nothing that it hears: the whole
//! exchange has a time, an answer has a size, and a certificate is verified.
//!
//! A user and a password are sent over TLS alone. What a server has said before TLS began counts for nothing after it.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use muster_core::fleet::notify::Answered;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    time::timeout,
};

use super::{
    dial::{self, one_line},
    mailbox::{MailServer, StartTls},
};

/// For the whole exchange. Servers wait some seconds on purpose before they greet, and a command line waits for 30 s.
const WHOLE: Duration = Duration::from_secs(25);

/// The command that names the sender.
const FROM: &str = "MAIL FROM";

/// One answer, with all its lines.
const ANSWER_MAX: u64 = 8 << 10;

/// What is sent.
pub(super) struct Mail<'a> {
    pub(super) server: &'a MailServer,
    pub(super) start_tls: StartTls,
    pub(super) tls: &'a Arc<ClientConfig>,
    /// User and password.
    pub(super) login: Option<(String, String)>,
    pub(super) from: &'a str,
    pub(super) to: Vec<&'a str>,
    pub(super) text: Vec<u8>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Sent {
    /// Those whose mail the server has taken.
    pub(super) taken: Vec<String>,
    /// Those whose mail it has not taken, and its answer.
    pub(super) refused: BTreeMap<String, Reply>,
    /// Its answer to the mail. `None`: nobody's was taken.
    accepted: Option<Reply>,
}

/// Why there was no mail.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) answered: Answered,
    pub(super) said: String,
    /// It is about this mail or those to whom it goes.
    pub(super) of_mail: bool,
}

impl From<String> for Failed {
    fn from(said: String) -> Self {
        Self {
            answered: Answered::NotNow(None),
            said,
            of_mail: false,
        }
    }
}

/// An answer of the server.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    code: u16,
    lines: Vec<String>,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SMTP {}", self.code)?;
        match one_line(self.lines.join(" ").as_bytes()).as_str() {
            "" => Ok(()),
            text => write!(f, ": {text}"),
        }
    }
}

impl Reply {
    /// What the server answers to a mail, its sender or a recipient is about that mail.
    fn refuses(self, command: &str) -> Failed {
        Failed {
            answered: Answered::by_reply(self.code),
            said: format!("{self} (to {command})"),
            // The sender is the operator's, and 421 closes the connection.
            of_mail: command != FROM && self.code != 421,
        }
    }

    /// What it answers to anything else is about all mails.
    fn fails(self, command: &str) -> Failed {
        format!("{self} (to {command})").into()
    }

    fn offers(&self, extension: &str) -> bool {
        let mut offered = self.lines.iter().skip(1);
        offered.any(|line| line.trim().eq_ignore_ascii_case(extension))
    }

    /// The ways to prove oneself.
    fn logins(&self) -> Vec<String> {
        let words = self.lines.iter().map(|line| line.to_ascii_uppercase());
        let words = words.filter(|line| line.starts_with("AUTH ") || line.starts_with("AUTH="));
        words
            .flat_map(|line| {
                let ways = line[5..].split_whitespace();
                ways.map(str::to_owned).collect::<Vec<_>>()
            })
            .collect()
    }
}

impl Sent {
    /// `before`: whether earlier attempts have reached somebody. Then only this message is tried again for the others: one full mailbox
    /// holds up no other mail. Who cannot be reached for good is no reason to try again if others were.
    pub(super) fn answered(&self, before: bool) -> Answered {
        let of = |reply: &Reply| Answered::by_reply(reply.code);
        let mut later = self.refused.values().map(of);
        let later = later.find(|answered| *answered != Answered::Refused);
        match (later, before || !self.taken.is_empty()) {
            (Some(later), false) => later,
            (Some(_), true) | (None, false) => Answered::Refused,
            (None, true) => Answered::Delivered,
        }
    }

    /// The same of a mail to the one address that a job has named. Whatever the server says of it is no reason to wait with other
    /// mail, and an address that there is not is given up.
    pub(super) fn answered_of_job(&self) -> Answered {
        let reply = self.refused.values().next();
        reply.map_or(Answered::Delivered, |reply| {
            of_job(Answered::by_reply(reply.code))
        })
    }

    /// For people.
    pub(super) fn said(&self) -> String {
        let accepted = self.accepted.iter().map(Reply::to_string);
        let parts: Vec<String> = accepted.chain(self.except()).collect();
        parts.join("; ")
    }

    /// Who was not reached, and why.
    pub(super) fn except(&self) -> Option<String> {
        let (to, reply) = self.refused.first_key_value()?;
        let more = match self.refused.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!("not for {to}: {reply}{more}"))
    }
}

impl Failed {
    /// The same of a mail to the one address that a job has named.
    pub(super) fn of_job(self) -> Self {
        match self.of_mail {
            true => Self {
                answered: of_job(self.answered),
                ..self
            },
            false => self,
        }
    }
}

fn of_job(answered: Answered) -> Answered {
    match answered {
        Answered::NotNow(_) => Answered::Refused,
        Answered::Refused => Answered::Hopeless,
        answered => answered,
    }
}

/// Sends it once.
pub(super) async fn send(mail: &Mail<'_>) -> Result<Sent, Failed> {
    let late = || Failed::from(format!("no mail was taken within {} s", WHOLE.as_secs()));
    timeout(WHOLE, exchange(mail))
        .await
        .unwrap_or_else(|_| Err(late()))
}

async fn exchange(mail: &Mail<'_>) -> Result<Sent, Failed> {
    let MailServer { tls, host, port } = mail.server;
    let stream = dial::connect(host, *port).await?;
    // A server wants a name, and the address is one that needs no set-up: <https://www.rfc-editor.org/rfc/rfc5321#section-4.1.3>.
    let own = stream.local_addr().map_err(|e| e.to_string())?.ip();
    let name = match own.to_canonical() {
        std::net::IpAddr::V4(address) => format!("[{address}]"),
        std::net::IpAddr::V6(address) => format!("[IPv6:{address}]"),
    };
    let mut line = match tls {
        true => Line::new(dial::secured(stream, host, mail.tls).await?),
        false => Line::new(stream),
    };
    let greeting = line.reply().await?;
    if greeting.code != 220 {
        return Err(greeting.fails("the connection"));
    }
    let hello = format!("EHLO {name}");
    let mut offers = line.ask(&hello, 250).await?;
    let mut is_secure = *tls;
    if !tls && mail.start_tls != StartTls::Off {
        if offers.offers("STARTTLS") {
            line.ask("STARTTLS", 220).await?;
            line = Line::new(dial::secured(line.bare()?, host, mail.tls).await?);
            offers = line.ask(&hello, 250).await?;
            is_secure = true;
        } else if mail.start_tls == StartTls::Required {
            let why = "the server offers no STARTTLS, and without TLS nothing is sent (startTls)";
            return Err(why.to_owned().into());
        }
    }
    if let Some((user, password)) = &mail.login {
        if !is_secure {
            let why = "the server offers no STARTTLS, and a password is not sent without TLS";
            return Err(why.to_owned().into());
        }
        log_in(&mut line, &offers, user, password).await?;
    }
    let sent = hand_over(&mut line, mail).await;
    // The server has taken the mail by now, or not, so the answer to QUIT does not matter.
    let _ = line.say("QUIT").await;
    sent
}

async fn log_in(line: &mut Line, offers: &Reply, user: &str, password: &str) -> Result<(), Failed> {
    let ways = offers.logins();
    let offers = |way: &str| ways.iter().any(|offered| offered == way);
    let accepted = if offers("PLAIN") {
        let proof = BASE64.encode(format!("\0{user}\0{password}"));
        line.say(&format!("AUTH PLAIN {proof}")).await?;
        line.reply().await?
    } else if offers("LOGIN") {
        let mut reply = line.ask("AUTH LOGIN", 334).await?;
        for word in [user, password] {
            if reply.code != 334 {
                break;
            }
            line.say(&BASE64.encode(word)).await?;
            reply = line.reply().await?;
        }
        reply
    } else {
        let why = "the server offers neither AUTH PLAIN nor AUTH LOGIN";
        return Err(why.to_owned().into());
    };
    match accepted.code {
        235 => Ok(()),
        // Its text may repeat what it was told.
        code => {
            Err(format!("SMTP {code}: the server does not accept the user and the password").into())
        }
    }
}

async fn hand_over(line: &mut Line, mail: &Mail<'_>) -> Result<Sent, Failed> {
    line.say(&format!("MAIL FROM:<{}>", mail.from)).await?;
    let reply = line.reply().await?;
    if reply.code != 250 {
        return Err(reply.refuses(FROM));
    }
    let mut sent = Sent {
        taken: Vec::new(),
        refused: BTreeMap::new(),
        accepted: None,
    };
    for to in &mail.to {
        line.say(&format!("RCPT TO:<{to}>")).await?;
        let reply = line.reply().await?;
        match reply.code {
            250..260 => sent.taken.push((*to).to_owned()),
            // It closes the connection.
            421 => return Err(reply.refuses("RCPT TO")),
            _ => drop(sent.refused.insert((*to).to_owned(), reply)),
        }
    }
    if sent.taken.is_empty() {
        return Ok(sent);
    }
    line.say("DATA").await?;
    let reply = line.reply().await?;
    if reply.code != 354 {
        return Err(reply.refuses("DATA"));
    }
    line.write(&framed(&mail.text)).await?;
    let reply = line.reply().await?;
    if reply.code != 250 {
        return Err(reply.refuses("the mail"));
    }
    sent.accepted = Some(reply);
    Ok(sent)
}

/// The text as it is sent: a dot that begins a line is doubled, and a dot alone ends it.
fn framed(text: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(text.len() + 16);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            framed.push(b'.');
        }
        framed.extend_from_slice(line);
    }
    framed.extend_from_slice(b".\r\n");
    framed
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection with commands and answers.
struct Line(BufReader<Box<dyn Stream>>);

impl Line {
    fn new(stream: impl Stream + 'static) -> Self {
        Self(BufReader::new(Box::new(stream)))
    }

    /// The connection below. What was sent ahead of TLS came from somebody who wants it to be believed after it:
    /// <https://nostarttls.secvuln.info>.
    fn bare(self) -> Result<Box<dyn Stream>, String> {
        match self.0.buffer().is_empty() {
            true => Ok(self.0.into_inner()),
            false => Err("the server has said more than STARTTLS allows".to_owned()),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let written = async {
            self.0.write_all(bytes).await?;
            self.0.flush().await
        };
        written
            .await
            .map_err(|e| format!("send to the server: {e}"))
    }

    async fn say(&mut self, command: &str) -> Result<(), String> {
        self.write(format!("{command}\r\n").as_bytes()).await
    }

    /// Says it, and wants this answer.
    async fn ask(&mut self, command: &str, code: u16) -> Result<Reply, Failed> {
        self.say(command).await?;
        let reply = self.reply().await?;
        match reply.code == code {
            true => Ok(reply),
            false => Err(reply.fails(command)),
        }
    }

    async fn reply(&mut self) -> Result<Reply, String> {
        let (mut lines, mut room) = (Vec::new(), ANSWER_MAX);
        loop {
            let mut line = Vec::new();
            let mut limited = (&mut self.0).take(room);
            let read = limited.read_until(b'\n', &mut line).await;
            let read = read.map_err(|e| format!("read from the server: {e}"))?;
            room -= read as u64;
            if !line.ends_with(b"\n") {
                return Err(match room {
                    0 => "the server's answer is too long".to_owned(),
                    _ => "the server has closed the connection".to_owned(),
                });
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let (code, rest) = text.split_at_checked(3).unwrap_or(("", &text));
            let code = code.parse().ok().filter(|code| (200..600).contains(code));
            let (Some(code), true) = (code, rest.is_empty() || rest.starts_with([' ', '-'])) else {
                return Err(format!("this is no answer of SMTP: {}", one_line(&line)));
            };
            lines.push(rest.get(1..).unwrap_or_default().to_owned());
            if !rest.starts_with('-') {
                return Ok(Reply { code, lines });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_in_the_text_does_not_end_it() {
        let text = b"a\r\n.\r\n..b\r\nc.\r\n";
        assert_eq!(framed(text), b"a\r\n..\r\n...b\r\nc.\r\n.\r\n");
    }

    fn sent(taken: &[&str], refused: &[(&str, u16)]) -> Sent {
        let reply = |code| Reply {
            code,
            lines: vec!["5.1.1 no".into()],
        };
        let refused = refused.iter();
        Sent {
            taken: taken.iter().map(ToString::to_string).collect(),
            refused: refused
                .map(|(to, code)| ((*to).to_owned(), reply(*code)))
                .collect(),
            accepted: (!taken.is_empty()).then(|| reply(250)),
        }
    }

    #[test]
    fn only_who_may_be_reached_later_is_tried_again() {
        let later = Answered::NotNow(None);
        for (taken, refused, before, must) in [
            (&["a"][..], &[][..], false, Answered::Delivered),
            (&["a"], &[("b", 550)], false, Answered::Delivered),
            (&["a"], &[("b", 450), ("c", 550)], false, Answered::Refused),
            (&[], &[("b", 450)], false, later),
            (&[], &[("b", 550)], false, Answered::Refused),
            (&[], &[("b", 550)], true, Answered::Delivered),
            (&[], &[("b", 452)], true, Answered::Refused),
        ] {
            assert_eq!(
                sent(taken, refused).answered(before),
                must,
                "{taken:?} {refused:?}"
            );
        }
        let said = sent(&["a"], &[("b", 550), ("c", 550)]).said();
        assert_eq!(
            said,
            "SMTP 250: 5.1.1 no; not for b: SMTP 550: 5.1.1 no, and 1 more"
        );
    }

    #[test]
    fn what_is_said_of_a_jobs_address_is_about_its_mail_alone() {
        for (refused, must) in [
            (&[][..], Answered::Delivered),
            (&[("a", 452)], Answered::Refused),
            (&[("a", 550)], Answered::Hopeless),
        ] {
            assert_eq!(sent(&[], refused).answered_of_job(), must, "{refused:?}");
        }
        let later = Answered::NotNow(None);
        for (code, command, must) in [
            (451, "the mail", Answered::Refused),
            (554, "the mail", Answered::Hopeless),
            (421, "RCPT TO", later),
            (451, FROM, later),
            (550, FROM, Answered::Refused),
        ] {
            let lines = Vec::new();
            let failed = Reply { code, lines }.refuses(command).of_job();
            assert_eq!(failed.answered, must, "{code} to {command}");
        }
        let dead = Failed::from("the server has closed the connection".to_owned());
        assert_eq!(dead.of_job().answered, later);
    }
}
