//! One turn of the fleet, in this order: take the inputs as facts, judge silence, forget what is
//! over, decide the brake and the cordons, settle every job that may be affected, and return what
//! changed.
//!
//! Reports are applied first and judged afterwards, so their order within one burst does not matter.
//! A request comes last and is decided at once.

use std::time::Duration;

use crate::{
    fleet::{cordon, input::Input, output::TurnOutput, scratch::Scratch, state::Fleet},
    time::Timestamp,
};

impl Fleet {
    /// Takes one input and decides.
    pub fn turn(&mut self, now: Timestamp, input: Input) -> TurnOutput {
        self.turn_all(now, [input])
    }

    /// Takes all inputs of a burst, in order, and decides once. So a thousand nodes that answer at
    /// the same time cost one decision and one commit. At most one of the inputs may be a request,
    /// and it must be the last, so that its answer describes the job as the request left it.
    pub fn turn_all(
        &mut self,
        now: Timestamp,
        inputs: impl IntoIterator<Item = Input>,
    ) -> TurnOutput {
        let mut scratch = Scratch::new(now);
        let slept = self
            .presence
            .turn_begins(now, &self.policy, &mut self.nodes);
        self.put_off(slept);
        if self.fresh {
            self.leave_missing_records(&mut scratch);
        }
        // Timers are not stored, so the first turn looks at every job.
        scratch.changes.capacity = std::mem::take(&mut self.fresh);
        // What is asked for in this turn is answered by the order that it decides by.
        self.reckon_shares(&mut scratch);
        for input in inputs {
            self.apply(input, &mut scratch);
        }
        self.tell_return(now, &mut scratch.events);
        let heartbeat = self.nodes.heartbeat(&self.policy);
        let listening = self.is_listening(now);
        for name in self.nodes.expire(now, heartbeat, &self.policy, listening) {
            self.liveness_changed(&name, &mut scratch);
        }
        self.forget_gone(&mut scratch);
        self.delete_expired(&mut scratch);
        self.decide_brake(&mut scratch);
        self.consider_cordons_again(&mut scratch);
        self.settle_all(&mut scratch);
        let (nodes, jobs, pods) = (&mut self.nodes, &self.jobs, &self.pods);
        let capacity = &mut self.capacity;
        self.audit
            .look(capacity, nodes, jobs, pods, &self.policy, &mut scratch);
        self.finish(scratch)
    }

    fn consider_cordons_again(&mut self, scratch: &mut Scratch) {
        let now = scratch.now;
        if now < self.consider_at || self.is_listening(now) {
            return;
        }
        self.consider_at = now + cordon::AGAIN;
        let (brake, policy) = (self.brake.as_ref(), &self.policy);
        cordon::consider_again(&mut self.nodes, &self.jobs, brake, policy, scratch);
    }

    /// The coordinator stood still for so long. It heard nobody meanwhile, so those who may still come
    /// back have as much more time.
    fn put_off(&mut self, slept: Duration) {
        if slept.is_zero() {
            return;
        }
        let of_brake = self.brake.as_mut().map(|brake| &mut brake.enough_back);
        let doubts = self.live.values_mut();
        let of_jobs =
            doubts.filter_map(|live| Some(&mut live.condition.doubt_mut()?.shared_silence.until));
        of_brake
            .into_iter()
            .chain(of_jobs)
            .flatten()
            .for_each(|until| *until = *until + slept);
    }

    fn apply(&mut self, input: Input, scratch: &mut Scratch) {
        match input {
            Input::Connected { session, hello } => self.connected(session, hello, scratch),
            Input::Report { session, report } => self.reported(session, report, scratch),
            Input::Runs { session, runs } => self.runs(session, runs, scratch),
            Input::Launchers { session, launchers } => self.launchers(session, launchers, scratch),
            Input::Heartbeat { session } => self.heard(session, scratch),
            Input::Disconnected { session } => self.disconnected(session, scratch),
            Input::Objects(news) => {
                self.objects
                    .read(news, &mut self.nodes, &self.jobs, &self.policy, scratch)
            }
            Input::Pods(news) => self.read_pods(news, scratch),
            Input::Request { id, actor, request } => {
                scratch.events.actor = Some(actor.clone());
                let reply = self.request(&actor, request, scratch);
                scratch.events.actor = None;
                debug_assert!(scratch.answer.is_none(), "one request a turn");
                scratch.answer = Some((id, reply));
            }
            Input::RecordTooLarge { job, why } => self.record_too_large(&job, &why, scratch),
            Input::Looked { job, number, ranks } => self.looked(&job, number, ranks, scratch),
            Input::Notified(sent) => self.outgoing.sent(sent),
            Input::Tick => {}
        }
    }
}
