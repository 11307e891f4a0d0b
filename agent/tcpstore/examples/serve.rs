//! Serves one store until it is killed. `serve 127.0.0.1:0 [--events]` prints the address, and then
//! each event if asked.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Instant;

use muster_tcpstore::{Event, Limits, Store};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, getrlimit, setrlimit};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let addr: SocketAddr = args
        .next()
        .ok_or("usage: serve ADDR:PORT [--events]")?
        .parse()?;
    let events = args.next().is_some_and(|a| a == "--events");

    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files)?;

    let mut store = Store::bind(addr, Limits::default())?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", store.local_addr())?;
    out.flush()?;

    let start = Instant::now();
    loop {
        poll(&mut [PollFd::new(&store.poll_fd(), PollFlags::IN)], None)?;
        store.turn(start.elapsed(), &mut |event| {
            if events {
                println!("{:>10.6} {}", start.elapsed().as_secs_f64(), Shown(&event));
            }
        })?;
    }
}

struct Shown<'a>(&'a Event);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Event::Set { client, key } => {
                write!(f, "{:>4} set     {}", client.0, key.escape_ascii())
            }
            Event::Added { client, key, value } => {
                write!(
                    f,
                    "{:>4} add     {} = {value}",
                    client.0,
                    key.escape_ascii()
                )
            }
            Event::Waiting { client, keys } => {
                write!(f, "{:>4} waiting", client.0)?;
                keys.iter()
                    .try_for_each(|key| write!(f, " {}", key.escape_ascii()))
            }
            Event::Connected { client, peer } => write!(f, "{:>4} connected from {peer}", client.0),
            Event::Closed { client, why } => write!(f, "{:>4} closed  {why:?}", client.0),
            Event::Refused { client, why } => write!(f, "{:>4} refused {why}", client.0),
        }
    }
}
