//! What a browser is told when the coordinator refuses.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[allow(dead_code, reason = "other tests ask for more of it")]
mod coordinator;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    sync::Mutex,
};

use coordinator::{Cardboard, muster, read, serve};
use tonic::Status;

/// `muster web`, until it is dropped.
struct Web(Child);

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(host: &str, path: &str, cookie: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_refused_list_is_not_allowed_and_a_dead_coordinator_gives_no_answer() {
    let refused = || Status::permission_denied("user/ann has no role, and this needs viewer");
    let broken = Status::resource_exhausted("too much");
    let cardboard = Cardboard {
        list: Mutex::new(vec![Err(refused()), Err(broken), Err(refused())].into()),
        ..Cardboard::default()
    };
    let (_runtime, _, address) = serve(cardboard);
    let mut command = muster(address, &["web", "--port", "0"]);
    let mut web = Web(command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap());
    let mut link = String::new();
    let mut out = BufReader::new(web.0.stdout.take().unwrap());
    out.read_line(&mut link).unwrap();
    let (host, path) = link
        .trim()
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let opened = ask(host, &format!("/{path}"), "").to_lowercase();
    let cookie = opened
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = cookie.unwrap().split(';').next().unwrap();
    let page = ask(host, "/", cookie);
    assert!(
        page.starts_with("HTTP/1.1 403 ") && page.contains("Not allowed"),
        "{page}"
    );
    assert!(page.contains("this needs viewer"), "{page}");
    let page = ask(host, "/", cookie);
    assert!(
        page.starts_with("HTTP/1.1 502 ") && page.contains("No answer"),
        "{page}"
    );
    // The command line ends with the same code as when the coordinator cannot be reached.
    let (code, _, told) = read(muster(address, &["get", "jobs"]).output().unwrap());
    assert!(
        code == 5 && told.contains("refuses: user/ann has no role"),
        "{told}"
    );
}
