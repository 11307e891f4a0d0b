//! A flood of connections by strangers. Each is opened and says nothing. Whenever the coordinator
//! closes one, another takes its place.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{io::AsyncReadExt, net::TcpSocket, task::JoinSet};

/// They come from so many addresses: a machine of a botnet has one, and one address has too few
/// ports for all.
const ADDRESSES: usize = 200;

/// The kernel refuses for a moment if too many connections wait.
const REFUSED: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Count {
    open: AtomicUsize,
    opened: AtomicUsize,
}

/// It ends when it is dropped.
pub(crate) struct Flood {
    count: Arc<Count>,
    _strangers: JoinSet<()>,
}

impl Flood {
    /// `coordinator` listens on loopback.
    pub(crate) fn start(coordinator: SocketAddr, strangers: usize) -> Self {
        let count = Arc::new(Count::default());
        let mut tasks = JoinSet::new();
        for number in 0..strangers {
            let count = count.clone();
            tasks.spawn(async move {
                let last = u8::try_from(number % ADDRESSES + 1).unwrap_or(1);
                let own = SocketAddr::from((Ipv4Addr::new(127, 0, 1, last), 0));
                loop {
                    if visit(own, coordinator, &count).await.is_none() {
                        tokio::time::sleep(REFUSED).await;
                    }
                }
            });
        }
        Self {
            count,
            _strangers: tasks,
        }
    }

    /// Connections that are open now, and all that were opened so far.
    pub(crate) fn count(&self) -> (usize, usize) {
        (
            self.count.open.load(Relaxed),
            self.count.opened.load(Relaxed),
        )
    }
}

/// One connection, until the coordinator closes it.
async fn visit(own: SocketAddr, coordinator: SocketAddr, count: &Count) -> Option<()> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind(own).ok()?;
    let mut stream = socket.connect(coordinator).await.ok()?;
    count.opened.fetch_add(1, Relaxed);
    count.open.fetch_add(1, Relaxed);
    let mut rest = [0; 512];
    while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    count.open.fetch_sub(1, Relaxed);
    Some(())
}
