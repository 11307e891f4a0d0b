//! Requests of HTTP: one on a connection of its own, as a scraper or a browser that has just come makes it, and one after the other, as
//! an open page does.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Asks for a page. Returns the time from the connection to the last byte, and the answer.
pub(crate) async fn get(
    address: SocketAddr,
    path: &str,
    cookie: Option<&str>,
) -> Result<(Duration, Answer)> {
    let cookie = cookie.map_or(String::new(), |cookie| format!("Cookie: {cookie}\r\n"));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{cookie}Connection: close\r\n\r\n");
    let began = Instant::now();
    let mut stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let took = began.elapsed();
    let answer = String::from_utf8(answer).context("the page is text")?;
    let (head, body) = answer.split_once(END).context("an answer has a head")?;
    Ok((took, Answer::of(head, body.to_owned())?))
}

/// Ends a head.
const END: &str = "\r\n\r\n";

impl Answer {
    fn of(head: &str, body: String) -> Result<Self> {
        let status = head
            .split_whitespace()
            .nth(1)
            .and_then(|status| status.parse().ok())
            .context("an answer has a status")?;
        let head = head.to_owned();
        Ok(Self { status, head, body })
    }
}

/// The connection of a browser, which stays open.
pub(crate) struct Browser {
    address: SocketAddr,
    cookie: String,
    stream: TcpStream,
}

impl Browser {
    pub(crate) async fn connect(address: SocketAddr, cookie: String) -> Result<Self> {
        Ok(Self {
            address,
            cookie,
            stream: TcpStream::connect(address).await?,
        })
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<(Duration, Answer)> {
        let (address, cookie) = (self.address, &self.cookie);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n");
        let began = Instant::now();
        self.stream.write_all(request.as_bytes()).await?;
        let (mut read, mut body_at) = (Vec::new(), None);
        let (head, from, until) = loop {
            ensure!(self.stream.read_buf(&mut read).await? > 0, "it hung up");
            if body_at.is_none() {
                let end = read.windows(END.len()).position(|at| at == END.as_bytes());
                body_at = match end {
                    Some(end) => {
                        let head = String::from_utf8(read[..end].to_vec())?;
                        let length = length(&head).context("the answer has no length")?;
                        Some((head, end + END.len(), end + END.len() + length))
                    }
                    None => None,
                };
            }
            if let Some((_, _, until)) = &body_at
                && read.len() >= *until
            {
                break body_at.context("it was found")?;
            }
        };
        let took = began.elapsed();
        let body = String::from_utf8(read[from..until].to_vec()).context("the page is text")?;
        Ok((took, Answer::of(&head, body)?))
    }
}

fn length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.eq_ignore_ascii_case("content-length");
        is_it.then(|| value.trim().parse().ok()).flatten()
    })
}
