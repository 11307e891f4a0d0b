//! A store on its own thread, and a small blocking client that speaks the wire by hand.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_tcpstore::{Event, Limits, Store};
use rustix::event::{PollFd, PollFlags, poll};

/// Long enough for a loaded machine. Only a test that is about to fail waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

type Job = Box<dyn FnOnce(&mut Store) + Send>;

/// A store being served.
pub struct Served {
    pub addr: SocketAddr,
    pub events: Receiver<Event>,
    jobs: Option<SyncSender<Job>>,
    wake: std::os::fd::OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn new(limits: Limits) -> Served {
        let mut store = Store::bind(([127, 0, 0, 1], 0).into(), limits).unwrap();
        let addr = store.local_addr();
        // One test causes fewer events than this.
        let (send, events) = sync_channel(1 << 20);
        let (jobs, todo) = sync_channel::<Job>(16);
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let woken = wake.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            loop {
                let mut fds = [
                    PollFd::from_borrowed_fd(store.poll_fd(), PollFlags::IN),
                    PollFd::new(&woken, PollFlags::IN),
                ];
                poll(&mut fds, None).unwrap();
                let _ = rustix::io::read(&woken, &mut [0; 8]);
                loop {
                    match todo.try_recv() {
                        Ok(job) => job(&mut store),
                        Err(std::sync::mpsc::TryRecvError::Empty) => break,
                        Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                    }
                }
                store
                    .turn(start.elapsed(), &mut |event| send.send(event).unwrap())
                    .unwrap();
            }
        });
        Served {
            addr,
            events,
            jobs: Some(jobs),
            wake,
            thread: Some(thread),
        }
    }

    /// Runs `job` with the store, on its thread.
    pub fn with<T: Send + 'static>(&self, job: impl FnOnce(&mut Store) -> T + Send + 'static) -> T {
        let (send, answer) = sync_channel(1);
        let job: Job = Box::new(move |store| send.send(job(store)).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        self.ring();
        answer.recv_timeout(PATIENCE).unwrap()
    }

    /// The next event for which `wanted` returns a value.
    pub fn event<T>(&self, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let event = self
                .events
                .recv_timeout(end - Instant::now())
                .expect("the event comes");
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    }

    pub fn refusal(&self) -> String {
        self.event(|e| match e {
            Event::Refused { why, .. } => Some(why.to_string()),
            _ => None,
        })
    }

    fn ring(&self) {
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.jobs = None;
        self.ring();
        let ended = self.thread.take().unwrap().join();
        assert!(
            ended.is_ok() || std::thread::panicking(),
            "the store's thread failed"
        );
    }
}

/// The client's side of a connection.
pub struct Client(pub TcpStream);

impl Client {
    /// A client that is connected and has sent nothing.
    pub fn silent(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    }

    pub fn new(addr: SocketAddr) -> Client {
        let mut client = Client::silent(addr);
        client.send(&[0, 0xce, 0xf7, 0x85, 0x3c]);
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn number(&mut self) -> i64 {
        i64::from_le_bytes(self.read())
    }

    pub fn value(&mut self) -> Vec<u8> {
        let len = u64::from_le_bytes(self.read()) as usize;
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn ping(&mut self) {
        self.send(&[13, 1, 2, 3, 4]);
        assert_eq!(self.read(), [1, 2, 3, 4]);
    }

    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        self.send(&[&[1][..], &field(key), &field(value)].concat());
    }

    pub fn get(&mut self, key: &[u8]) -> Vec<u8> {
        self.send(&[&[3][..], &field(key)].concat());
        self.value()
    }

    pub fn add(&mut self, key: &[u8], by: i64) -> i64 {
        self.send(&[&[4][..], &field(key), &by.to_le_bytes()].concat());
        self.number()
    }

    pub fn start_wait(&mut self, keys: &[&[u8]]) {
        let keys: Vec<u8> = keys.iter().flat_map(|k| field(k)).collect();
        // The count comes first, even for one key.
        let count = count_fields(&keys);
        self.send(&[&[6][..], &count.to_le_bytes(), &keys].concat());
    }

    pub fn stop_waiting(&mut self) {
        assert_eq!(self.read(), [0], "STOP_WAITING");
    }

    /// Waits until the store has closed this connection.
    pub fn closed(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b"", "nothing is said to a client that is refused"),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

pub fn field(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

fn count_fields(mut fields: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((len, rest)) = fields.split_first_chunk::<8>() {
        fields = &rest[u64::from_le_bytes(*len) as usize..];
        count += 1;
    }
    count
}
