//! As much of HTTP/1.1 as it takes to ask torch's worker server one question over one connection.

/// The longest answer with its head. The flight recorder names only what has not completed, some 600 bytes
/// for each call; versions that ignore `onlyactive` send their whole list of 2,000.
pub const ANSWER_MAX: usize = 4 << 20;

/// The handlers of the worker server that are asked: those that need no lock of the interpreter. Who waits for
/// that lock (`dump_traceback`) occupies one of the server's few threads, and the end of the server waits for
/// it with the lock in its hand. Which of them a rank has depends on its version of torch
/// and on the backend: a handler that is missing answers 404, so all are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// The flight recorder of gloo, torch 2.9 and later.
    Gloo,
    /// The flight recorder of NCCL, torch 2.5 and later.
    Nccl,
}

impl Question {
    pub const ALL: [Question; 2] = [Question::Gloo, Question::Nccl];

    /// The bytes that ask for all calls that the recorder still has, up to 2,000 of some 500 bytes.
    pub fn request_for_all(self) -> &'static [u8] {
        match self {
            Question::Gloo => {
                b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            }
            Question::Nccl => {
                b"POST /handler/dump_nccl_trace_json HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            }
        }
    }

    /// The bytes to send.
    pub fn request(self) -> &'static [u8] {
        match self {
            Question::Gloo => {
                b"POST /handler/fr_trace_json?onlyactive=true HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            }
            Question::Nccl => {
                b"POST /handler/dump_nccl_trace_json?onlyactive=true HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            }
        }
    }
}

/// An answer, as far as it has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// More must come.
    Partial,
    /// The body.
    Whole(&'a [u8]),
    /// This server has no such handler.
    NoHandler,
    /// Why there is no body.
    Refused(String),
}

impl<'a> Answer<'a> {
    /// Reads what has come. `ended`: nothing more comes.
    pub fn read(heard: &'a [u8], ended: bool) -> Answer<'a> {
        if heard.len() > ANSWER_MAX {
            return Answer::Refused(format!("the answer has more than {ANSWER_MAX} bytes"));
        }
        let Some(head) = heard.windows(4).position(|four| four == b"\r\n\r\n") else {
            return match ended {
                true => Answer::Refused("the connection ended before the answer".into()),
                false => Answer::Partial,
            };
        };
        let body = &heard[head + 4..];
        let head = String::from_utf8_lossy(&heard[..head]);
        let mut lines = head.lines();
        let status = lines.next().unwrap_or_default();
        let status = status.split(' ').nth(1).unwrap_or_default();
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        });
        let body = match length {
            Some(length) if body.len() >= length => &body[..length],
            Some(_) if ended => {
                return Answer::Refused("the connection ended within the answer".into());
            }
            None if ended => body,
            _ => return Answer::Partial,
        };
        match status {
            "200" => Answer::Whole(body),
            "404" => Answer::NoHandler,
            _ => {
                let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
                Answer::Refused(format!("the server answered {status:.8}: {}", text.trim()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

    #[test]
    fn an_answer_is_whole_as_soon_as_its_length_has_come() {
        for cut in 0..WHOLE.len() {
            assert_eq!(Answer::read(&WHOLE[..cut], false), Answer::Partial, "{cut}");
            let cut_off = Answer::read(&WHOLE[..cut], true);
            assert!(matches!(cut_off, Answer::Refused(_)), "{cut}: {cut_off:?}");
        }
        assert_eq!(Answer::read(WHOLE, false), Answer::Whole(b"hello"));
    }

    #[test]
    fn an_answer_without_length_ends_with_its_connection() {
        let answer = b"HTTP/1.1 200 OK\r\n\r\nhello";
        assert_eq!(Answer::read(answer, false), Answer::Partial);
        assert_eq!(Answer::read(answer, true), Answer::Whole(b"hello"));
    }

    #[test]
    fn a_handler_that_is_missing_is_not_one_that_fails() {
        let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(Answer::read(missing, false), Answer::NoHandler);
        let failed = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\nwhy\n";
        let why = "the server answered 500: why".to_owned();
        assert_eq!(Answer::read(failed, false), Answer::Refused(why));
    }

    #[test]
    fn no_answer_is_longer_than_its_bound() {
        let flood = vec![b'x'; ANSWER_MAX + 1];
        assert!(matches!(Answer::read(&flood, false), Answer::Refused(_)));
        let endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n";
        assert_eq!(Answer::read(endless, false), Answer::Partial);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(heard: Vec<u8>, ended: bool) {
            let _ = Answer::read(&heard, ended);
        }
    }
}
