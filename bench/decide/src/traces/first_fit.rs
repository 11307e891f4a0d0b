//! The plainest of schedulers, as something to compare with. Each waiting job, in the order in which they came, gets the first nodes with
//! room for what it wants; one that finds none is passed. Nothing is kept for anybody, and no job is ever resized. It decides in no time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use muster_core::time::Timestamp;

use super::{
    books::Books,
    free::Free,
    play::{LOOK_EVERY, Played},
    trace::{START, Trace, seconds},
};

struct FirstFit<'t> {
    trace: &'t Trace,
    start_cost: f64,
    books: Books,
    free: Free,
    /// Nodes of each job that runs, and how many GPUs it has there.
    held: BTreeMap<usize, Vec<(usize, u32)>>,
    ends: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

pub(super) fn play(trace: &Trace, start_cost: f64) -> Played {
    let mut play = FirstFit {
        trace,
        start_cost,
        books: Books::new(trace),
        free: Free::new(&trace.nodes),
        held: BTreeMap::new(),
        ends: BinaryHeap::new(),
    };
    let mut next = 0;
    let mut look_at = START;
    loop {
        let comes = trace.jobs.get(next).map(|job| job.at);
        let ends = play.ends.peek().map(|Reverse((at, _))| *at);
        let Some(now) = comes.into_iter().chain(ends).min() else {
            break;
        };
        while look_at < now {
            if play.books.is_measured(look_at) {
                let wanted = |job: usize| trace.jobs[job].wanted;
                play.books.look(trace, look_at, &play.free, wanted);
            }
            look_at = look_at + LOOK_EVERY;
        }
        if ends == Some(now) {
            play.end(now);
            let waiting: Vec<usize> = play.books.waiting.iter().copied().collect();
            waiting.into_iter().for_each(|job| play.start(job, now));
        } else {
            play.books.submitted(next);
            play.start(next, now);
            next += 1;
        }
    }
    play.books.close();
    Played::without_turns(play.books)
}

impl FirstFit<'_> {
    /// All that ends at this moment.
    fn end(&mut self, now: Timestamp) {
        while let Some(Reverse((at, job))) = self.ends.peek().copied()
            && at == now
        {
            self.ends.pop();
            for (node, gpus) in self.held.remove(&job).into_iter().flatten() {
                self.free.set(node, self.free.of(node) + gpus);
            }
            let gpus = self.trace.jobs[job].gpus_wanted();
            self.books.stops(now, gpus, gpus.into());
            self.books.ends(job, now);
        }
    }

    /// Starts a job, if there is room.
    fn start(&mut self, number: usize, now: Timestamp) {
        let job = &self.trace.jobs[number];
        let each = job.gpus_per_member;
        if self.free.members(each) < job.wanted {
            return;
        }
        let (mut left, mut held) = (job.wanted, Vec::new());
        for node in 0..self.trace.nodes.len() {
            let members = (self.free.of(node) / each).min(left);
            if members > 0 {
                self.free.set(node, self.free.of(node) - members * each);
                held.push((node, members * each));
                left -= members;
            }
            if left == 0 {
                break;
            }
        }
        self.held.insert(number, held);
        let gpus = f64::from(job.gpus_wanted());
        self.books.begins(number, now, job.gpus_wanted(), gpus);
        self.books.lost(now, gpus * self.start_cost);
        let ends = now + seconds(self.start_cost + job.work / gpus);
        self.ends.push(Reverse((ends, number)));
    }
}
