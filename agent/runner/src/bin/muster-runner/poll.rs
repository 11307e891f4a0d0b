//! One epoll for everything that the runner waits for. Each descriptor carries a [`Source`] that
//! says what it belongs to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// How many events a turn handles. The next wait returns the others, so a flood on many descriptors
/// cannot starve one of them.
const BATCH: usize = 64;

/// The descriptor that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Signals,
    ControlListener,
    RanksListener,
    Store,
    /// A connection of the control socket.
    Client(u32),
    /// A connection of the ranks socket.
    Shim(u32),
    /// The output with this number: side 0 is stdout, side 1 is stderr.
    Stream(u32, u8),
    /// See [`Poll::ring_at`].
    Alarm,
    /// The launcher that stays.
    Launcher,
    /// A connection to the worker server of a rank.
    WorkerServer(u32),
}

impl Source {
    fn pack(self) -> u64 {
        let (kind, id, side) = match self {
            Source::Signals => (0, 0, 0),
            Source::ControlListener => (1, 0, 0),
            Source::RanksListener => (2, 0, 0),
            Source::Store => (3, 0, 0),
            Source::Client(id) => (4, id, 0),
            Source::Shim(id) => (5, id, 0),
            Source::Stream(id, side) => (6, id, side),
            Source::Alarm => (7, 0, 0),
            Source::Launcher => (8, 0, 0),
            Source::WorkerServer(id) => (9, id, 0),
        };
        u64::from(id) << 32 | u64::from(side) << 8 | kind
    }

    fn unpack(data: u64) -> Source {
        let (id, side) = ((data >> 32) as u32, (data >> 8) as u8);
        match data as u8 {
            0 => Source::Signals,
            1 => Source::ControlListener,
            2 => Source::RanksListener,
            3 => Source::Store,
            4 => Source::Client(id),
            5 => Source::Shim(id),
            7 => Source::Alarm,
            8 => Source::Launcher,
            9 => Source::WorkerServer(id),
            _ => Source::Stream(id, side),
        }
    }
}

/// What a descriptor is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
    Both,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        }
    }
}

pub(crate) struct Poll {
    epoll: OwnedFd,
    alarm: OwnedFd,
    rings_at: Option<Duration>,
    ready: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        let alarm = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Edge-triggered, so that nobody has to read the timer's count.
        epoll::add(
            &epoll,
            &alarm,
            EventData::new_u64(Source::Alarm.pack()),
            EventFlags::IN | EventFlags::ET,
        )?;
        Ok(Self {
            epoll,
            alarm,
            rings_at: None,
            ready: Vec::with_capacity(BATCH),
        })
    }

    /// Ends a wait at this moment of boot time. The timeout of a wait stands still while the
    /// machine sleeps. If a deadline passed during the sleep, the runner would notice it only after
    /// the rest of the timeout.
    pub(crate) fn ring_at(&mut self, at: Option<Duration>) -> io::Result<()> {
        if self.rings_at == at {
            return Ok(());
        }
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // The kernel takes a moment of zero for "never".
        let first = at.map_or(never, |at| timespec(at.max(Duration::from_nanos(1))));
        timerfd_settime(
            &self.alarm,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec {
                it_interval: never,
                it_value: first,
            },
        )?;
        self.rings_at = at;
        Ok(())
    }

    pub(crate) fn add(&self, fd: impl AsFd, source: Source, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(source.pack()),
            interest.flags(),
        )?)
    }

    pub(crate) fn change(
        &self,
        fd: impl AsFd,
        source: Source,
        interest: Interest,
    ) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            fd,
            EventData::new_u64(source.pack()),
            interest.flags(),
        )?)
    }

    /// Must be called before the descriptor is closed if another process may hold a copy of it.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something is ready or `timeout` is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<Source>> {
        let timeout = timeout.map(timespec);
        self.ready.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.ready),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(self
            .ready
            .iter()
            .map(|event| Source::unpack(event.data.u64()))
            .collect())
    }
}

/// The seconds saturate where the kernel's type ends: a grace may mean "no limit".
fn timespec(at: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Poll, Source};
    use crate::time;

    #[test]
    fn an_alarm_ends_a_wait_that_has_no_end() {
        let mut poll = Poll::new().unwrap();
        for _ in 0..2 {
            let at = time::boot() + Duration::from_millis(5);
            poll.ring_at(Some(at)).unwrap();
            assert_eq!(poll.wait(None).unwrap(), [Source::Alarm]);
            assert!(time::boot() >= at);
        }
        poll.ring_at(Some(time::boot() + Duration::from_secs(3_600)))
            .unwrap();
        poll.ring_at(None).unwrap();
        assert_eq!(poll.wait(Some(Duration::from_millis(5))).unwrap(), []);
        poll.ring_at(Some(Duration::ZERO)).unwrap();
        assert_eq!(
            poll.wait(None).unwrap(),
            [Source::Alarm],
            "it is over already"
        );
    }

    #[test]
    fn sources_survive_packing() {
        let all = [
            Source::Signals,
            Source::ControlListener,
            Source::RanksListener,
            Source::Store,
            Source::Client(u32::MAX),
            Source::Shim(7),
            Source::Alarm,
            Source::WorkerServer(u32::MAX),
            Source::Stream(3, 0),
            Source::Stream(u32::MAX, 1),
        ];
        for source in all {
            assert_eq!(Source::unpack(source.pack()), source);
        }
    }
}
