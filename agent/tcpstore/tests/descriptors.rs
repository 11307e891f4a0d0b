//! A process without descriptors left: connections are refused with a reason, and the store goes
//! on. This test has its own binary, because it lowers the limit of the whole process.

use std::net::TcpStream;
use std::time::Duration;

use muster_tcpstore::{Event, Limits, Store};
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn without_descriptors_connections_are_turned_away() {
    let mut store = Store::bind(([127, 0, 0, 1], 0).into(), Limits::default()).unwrap();
    let waiting: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(store.local_addr()).unwrap())
        .collect();

    let before = getrlimit(Resource::Nofile);
    let in_use = rustix::io::fcntl_dupfd_cloexec(&waiting[0], 0).unwrap();
    let next_free = std::os::fd::AsRawFd::as_raw_fd(&in_use) as u64;
    drop(in_use);
    setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: Some(next_free),
            ..before
        },
    )
    .unwrap();

    let mut refused = Vec::new();
    store
        .turn(Duration::ZERO, &mut |event| {
            if let Event::Refused { why, .. } = event {
                refused.push(why.to_string());
            }
        })
        .unwrap();
    assert_eq!(refused, vec!["the process has no file descriptor left"; 20]);
    let mut events = [std::mem::MaybeUninit::<rustix::event::epoll::Event>::uninit(); 4];
    let (ready, _) =
        rustix::event::epoll::wait(store.poll_fd(), &mut events, Some(&Default::default()))
            .unwrap();
    assert!(
        ready.is_empty(),
        "nothing is left to do: the caller's loop may sleep"
    );

    setrlimit(Resource::Nofile, before).unwrap();
    let _client = TcpStream::connect(store.local_addr()).unwrap();
    let mut connected = 0;
    store
        .turn(Duration::ZERO, &mut |event| {
            connected += usize::from(matches!(event, Event::Connected { .. }))
        })
        .unwrap();
    assert_eq!(connected, 1);
}
