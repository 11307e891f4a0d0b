//! One request of HTTP on a connection of its own, as a scraper or a browser that has just come makes it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
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
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("an answer has a head")?;
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok())
        .context("an answer has a status")?;
    let (head, body) = (head.to_owned(), body.to_owned());
    Ok((took, Answer { status, head, body }))
}
