//! A way between an agent and the coordinator that the test controls. Each direction is open, late
//! or shut.
//!
//! A shut direction accepts bytes and keeps them until it opens. TCP makes the same of a cut cable
//! that is mended before a timeout. The relay cannot show lost packets under a connection
//! (retransmission), or resets by a router. [`Relay::reset`] is a reset by an end.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Everything arrives this much later.
    Late(Duration),
    Shut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    up: Way,
    down: Way,
    /// New connections are closed at once.
    refusing: bool,
    over: bool,
}

type Direction = fn(&State) -> Way;

struct Valve {
    state: Mutex<State>,
    changed: Condvar,
    streams: Mutex<Vec<TcpStream>>,
    upstream: Mutex<SocketAddr>,
    dialled: AtomicU64,
}

pub struct Relay {
    pub address: SocketAddr,
    valve: Arc<Valve>,
    listener: TcpListener,
    accepting: Option<JoinHandle<()>>,
}

impl Relay {
    /// Forwards from `listener` to `upstream`. Up is the direction from the caller to `upstream`.
    pub fn start(listener: TcpListener, upstream: SocketAddr) -> Relay {
        let state = State {
            up: Way::Open,
            down: Way::Open,
            refusing: false,
            over: false,
        };
        let valve = Arc::new(Valve {
            state: Mutex::new(state),
            changed: Condvar::new(),
            streams: Mutex::default(),
            upstream: Mutex::new(upstream),
            dialled: AtomicU64::new(0),
        });
        let address = listener.local_addr().expect("a listener has an address");
        let (own, shared) = (
            listener.try_clone().expect("descriptors are left"),
            valve.clone(),
        );
        let accepting = Some(thread::spawn(move || shared.accept(&own)));
        Relay {
            address,
            valve,
            listener,
            accepting,
        }
    }

    pub fn set(&self, up: Way, down: Way) {
        self.valve
            .change(|state| (state.up, state.down) = (up, down));
    }

    /// Breaks every connection and refuses new ones, until [`Relay::heal`].
    pub fn reset(&self) {
        self.valve.change(|state| state.refusing = true);
        self.valve.break_all();
    }

    pub fn heal(&self) {
        self.valve
            .change(|state| (state.up, state.down, state.refusing) = (Way::Open, Way::Open, false));
    }

    /// How many connections callers have begun so far. A caller that begins another one has given up the one
    /// before.
    pub fn dialled(&self) -> u64 {
        self.valve.dialled.load(Ordering::Relaxed)
    }

    pub fn lead_to(&self, upstream: SocketAddr) {
        *self
            .valve
            .upstream
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = upstream;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.valve.change(|state| state.over = true);
        self.valve.break_all();
        // Wakes accept(2) with an error.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Valve {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn break_all(&self) {
        for stream in self
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((near, _)) = listener.accept() {
            let State { refusing, over, .. } = self.state();
            if over {
                return;
            }
            self.dialled.fetch_add(1, Ordering::Relaxed);
            let upstream = *self.upstream.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(far) = (!refusing)
                .then(|| TcpStream::connect(upstream).ok())
                .flatten()
            else {
                continue;
            };
            let clone = |stream: &TcpStream| stream.try_clone().expect("descriptors are left");
            self.streams
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend([clone(&near), clone(&far)]);
            let ways: [(TcpStream, TcpStream, Direction); 2] = [
                (clone(&near), clone(&far), |state| state.up),
                (far, near, |state| state.down),
            ];
            for (from, to, way) in ways {
                let valve = self.clone();
                thread::spawn(move || valve.carry(from, to, way));
            }
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, way: Direction) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !self.pass(way) || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // The end of a stream is carried like any byte.
        if self.pass(way) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// Returns when the next bytes may go on. `false`: they never may.
    fn pass(&self, way: Direction) -> bool {
        let came = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.over {
                return false;
            }
            let left = match way(&state) {
                Way::Open => return true,
                Way::Late(by) => match by.checked_sub(came.elapsed()) {
                    Some(left) if !left.is_zero() => left,
                    _ => return true,
                },
                Way::Shut => Duration::from_secs(3_600),
            };
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
