//! Lets a whole job join a store: `join_bench ADDR:PORT [RANKS]` prints the milliseconds of each
//! step.
//!
//! It works with any TCPStore server, so ours can be compared with torch's. One thread holds all
//! ranks. In each step all ranks send before the first answer is read, so the server has all
//! requests at once. Answers are read through a buffer: a system call for each of a million values
//! would cost this one thread more than either server spends on them.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use muster_tcpstore::Key;
use muster_tcpstore::protocol::{Request, hello};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Room for the part of a `MultiGet` answer that arrives at once.
const BUFFER: usize = 32 * 1024;

struct Rank(BufReader<TcpStream>);

impl Rank {
    fn ask(&mut self, requests: &[Request]) -> Result<()> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|r| r.write_to(&mut bytes));
        Ok(self.0.get_mut().write_all(&bytes)?)
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn value(&mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; u64::from_le_bytes(self.read()?) as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let addr: SocketAddr = args
        .next()
        .ok_or("usage: join_bench ADDR:PORT [RANKS]")?
        .parse()?;
    let count: usize = args.next().map_or(Ok(1024), |n| n.parse())?;
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files)?;

    let key = |name: String| Key::from(name.into_bytes());
    // Small on purpose: this measures requests, not the loopback's bytes.
    let address = vec![7; 150];
    let all: Vec<Key> = (0..count)
        .map(|r| key(format!("/default_pg/0//cpu//0/{r}")))
        .collect();
    let id = key("/default_pg/0//cuda//0".into());
    let (members, last) = (
        key("/job/done/num_members".into()),
        key("/job/done/last_member".into()),
    );

    let start = Instant::now();
    let mut before = 0.0;
    let mut step = |name: &str| {
        let now = start.elapsed().as_secs_f64() * 1e3;
        println!("{name:<34} {:>9.1} ms", now - before);
        before = now;
    };

    let mut ranks = Vec::with_capacity(count);
    for _ in 0..count {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        ranks.push(Rank(BufReader::with_capacity(BUFFER, stream)));
    }
    step("connect");

    for (n, rank) in ranks.iter_mut().enumerate() {
        rank.0.get_mut().write_all(&hello())?;
        rank.ask(&[Request::Ping { nonce: n as u32 }])?;
    }
    for (n, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(u32::from_le_bytes(rank.read()?), n as u32);
    }
    let add = Request::Add {
        key: key("init/".into()),
        by: 1,
    };
    ranks
        .iter_mut()
        .try_for_each(|rank| rank.ask(std::slice::from_ref(&add)))?;
    for rank in &mut ranks {
        rank.read::<8>()?;
    }
    step("validate, ping, announce");

    for rank in &mut ranks[1..] {
        rank.ask(&[Request::Wait {
            keys: vec![id.clone()],
        }])?;
    }
    ranks[0].ask(&[Request::Set {
        key: id.clone(),
        value: vec![1; 128],
    }])?;
    for rank in &mut ranks[1..] {
        rank.read::<1>()?;
        rank.ask(&[Request::Get { key: id.clone() }])?;
    }
    for rank in &mut ranks[1..] {
        assert_eq!(rank.value()?.len(), 128);
    }
    step("NCCL: rank 0's id to all");

    for (n, rank) in ranks.iter_mut().enumerate() {
        rank.ask(&[
            Request::Set {
                key: all[n].clone(),
                value: address.clone(),
            },
            Request::Wait { keys: all.clone() },
        ])?;
    }
    for rank in &mut ranks {
        rank.read::<1>()?;
    }
    step("gloo: all wait for all addresses");
    for rank in &mut ranks {
        rank.ask(&[Request::MultiGet { keys: all.clone() }])?;
    }
    for rank in &mut ranks {
        for _ in 0..count {
            assert_eq!(rank.value()?.len(), address.len());
        }
    }
    step("gloo: all read all addresses");

    for rank in &mut ranks {
        rank.ask(&[Request::Add {
            key: members.clone(),
            by: 1,
        }])?;
    }
    for rank in &mut ranks {
        if i64::from_le_bytes(rank.read()?) == count as i64 {
            rank.ask(&[Request::Set {
                key: last.clone(),
                value: b"1".to_vec(),
            }])?;
        }
        rank.ask(&[Request::Wait {
            keys: vec![last.clone()],
        }])?;
    }
    for rank in &mut ranks {
        rank.read::<1>()?;
    }
    step("exit barrier");
    println!(
        "{:<34} {:>9.1} ms",
        format!("{count} ranks in all"),
        start.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
