//! One POST to another program, over HTTP/1.1. It trusts nothing that it hears: the whole exchange has a time, the answer
//! a size, a certificate is verified, and a redirect is an answer like any other.

use std::{fmt::Display, pin::pin, sync::Arc, time::Duration};

use http::{
    HeaderValue, Request, Response,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use muster_core::fleet::notify::Answered;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::{dial, receiver::Address};

/// For the whole exchange. Receivers queue what they get, and answer within a second or two.
const WHOLE: Duration = Duration::from_secs(15);

/// So much of an answer is read. It says what is wrong, for people.
const ANSWER_MAX: usize = 4 << 10;

/// The head of an answer.
const HEAD_MAX: usize = 16 << 10;

/// What is sent.
pub(super) struct Post {
    pub(super) address: Address,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) token: Option<String>,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    retry_after: Option<Duration>,
    /// The beginning of the answer, in one line.
    text: String,
}

impl Reply {
    pub(super) fn answered(&self) -> Answered {
        Answered::by_status(self.status, self.retry_after)
    }
}

impl Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP {}", self.status)?;
        if (300..400).contains(&self.status) {
            f.write_str(", a redirect, which is not followed: name the address that it leads to")?;
        }
        match self.text.as_str() {
            "" => Ok(()),
            text => write!(f, ": {text}"),
        }
    }
}

/// Sends it and reads the answer.
pub(super) async fn post(post: Post) -> Result<Reply, String> {
    let late = || format!("no answer within {} s", WHOLE.as_secs());
    timeout(WHOLE, exchange(post))
        .await
        .unwrap_or_else(|_| Err(late()))
}

async fn exchange(post: Post) -> Result<Reply, String> {
    let Address {
        tls, host, port, ..
    } = post.address.clone();
    let stream = dial::connect(&host, port).await?;
    match tls {
        true => {
            let stream = dial::secured(stream, &host, &post.tls).await?;
            request(stream, post).await
        }
        false => request(stream, post).await,
    }
}

async fn request(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    post: Post,
) -> Result<Reply, String> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_MAX);
    let (mut sender, connection) = builder
        .handshake(TokioIo::new(stream))
        .await
        .map_err(said)?;
    let message = message(&post)?;
    let exchange = async move { reply(sender.send_request(message).await.map_err(said)?).await };
    let (mut exchange, connection) = (pin!(exchange), pin!(connection));
    tokio::select! {
        biased;
        reply = &mut exchange => reply,
        // What was read before the connection ended is still to be had.
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(why) => Err(said(why)),
        },
    }
}

fn message(post: &Post) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::post(&post.address.path)
        .header(HOST, post.address.authority())
        .header(USER_AGENT, "muster-coordinator")
        .header(CONTENT_TYPE, "application/json");
    for (name, value) in &post.headers {
        request = request.header(*name, value);
    }
    if let Some(token) = &post.token {
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer.map_err(|_| "the token has characters that no header may have")?;
        bearer.set_sensitive(true);
        request = request.header(AUTHORIZATION, bearer);
    }
    let body = Full::new(Bytes::from(post.body.clone()));
    request.body(body).map_err(|e| e.to_string())
}

async fn reply(response: Response<Incoming>) -> Result<Reply, String> {
    let (head, mut body) = response.into_parts();
    let after = head.headers.get(RETRY_AFTER);
    let after = after.and_then(|value| retry_after(value.to_str().ok()?));
    let mut read = Vec::new();
    while read.len() < ANSWER_MAX {
        // The status counts, and not what follows it.
        let Some(Ok(frame)) = body.frame().await else {
            break;
        };
        if let Some(data) = frame.data_ref() {
            let room = ANSWER_MAX - read.len();
            read.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(Reply {
        status: head.status.as_u16(),
        retry_after: after,
        text: dial::one_line(&read),
    })
}

/// Seconds, or a date: <https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3>.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    let left = date.timestamp().duration_since(jiff::Timestamp::now());
    Duration::try_from(left).ok()
}

/// An error with its cause: hyper's own sentence says little.
fn said(error: hyper::Error) -> String {
    muster_runtime::chain::chain(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_says_when_to_come_again() {
        assert_eq!(retry_after("120"), Some(Duration::from_secs(120)));
        let soon = retry_after("Fri, 01 Jan 2100 00:00:00 GMT").unwrap();
        assert!(soon > Duration::from_secs(3600));
        assert_eq!(retry_after("Mon, 01 Jan 2001 00:00:00 GMT"), None);
        assert_eq!(retry_after("later"), None);
    }
}
