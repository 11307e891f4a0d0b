//! What users ask for. A request is refused with a reason, or it changes a record. `settle` acts on
//! the change.

use crate::{
    fleet::{
        actor::Actor,
        changes::Changes,
        cordon, ending,
        input::Request,
        job::{Ending, JobRecord, Phase, Reason, Stage},
        ledger,
        node_record::{Cordon, CordonedBy},
        output::{Answer, Refusal},
        queue_view,
        scratch::{Reply, Scratch},
        state::Fleet,
        tombstone::{TOMBSTONES_MAX, Tombstone},
    },
    id::{Generation, JobName, JobUid, NodeName},
    run::RunId,
    spec::{JobSpec, Lifetime},
    time::Timestamp,
};

/// The longest reason of a cordon, in bytes. It is enough for a few sentences, and a node's record
/// stays small.
const CORDON_TEXT_MAX: usize = 512;

impl Fleet {
    pub(crate) fn request(
        &mut self,
        actor: &Actor,
        request: Request,
        scratch: &mut Scratch,
    ) -> Reply {
        let reply = match request {
            Request::Submit {
                name,
                spec,
                uid,
                request_id,
                validate_only,
            } => {
                let record = JobRecord {
                    owner: Some(actor.clone()),
                    ..JobRecord::submitted(uid, name, spec, request_id, scratch.now)
                };
                self.submit(record, validate_only, scratch)
            }
            Request::Suspend { name, suspended } => self.suspend(&name, actor, suspended, scratch),
            Request::Limit { name, lifetime } => self.limit(&name, lifetime, &mut scratch.changes),
            Request::Scale { name, nodes } => self.scale(&name, actor, nodes, scratch),
            Request::Cancel { name } => self.cancel(&name, scratch),
            Request::Delete { name } => self.delete(&name, actor, scratch),
            Request::NoteSignal {
                name,
                uid,
                generation,
                signal,
                ranks,
            } => match self.find(&name) {
                Ok(known) if known == uid => {
                    let message = signalled(signal, &ranks, generation);
                    scratch
                        .events
                        .note("Signalled", message)
                        .of_job(&uid, &name);
                    Ok(Reply::Job { uid, existed: true })
                }
                // It was deleted since, and a job of its name has another story.
                Ok(_) => Err(Refusal::NoSuchJob(name)),
                Err(refusal) => Err(refusal),
            },
            Request::Cordon { node, reason } => self.cordon(&node, actor, reason, scratch),
            Request::Uncordon { node } => self.uncordon(&node, scratch),
            Request::DeleteNode { node } => self.delete_node(&node, scratch),
            Request::Queues => {
                let queues = queue_view::queue_views(&self.policy.queues, self.jobs.values());
                Ok(Reply::Complete(Answer::Queues(queues)))
            }
            Request::Starts => { self.may_plan(Some(actor), scratch.now) }
                .map(|()| Reply::Complete(Answer::Starts(self.starts(scratch)))),
            Request::Order => Ok(Reply::Complete(Answer::Order(self.waiting_order()))),
            Request::Shares => {
                let shares = self.fair_share.shares(&self.policy);
                Ok(Reply::Complete(Answer::Shares(shares)))
            }
        };
        reply.unwrap_or_else(|refusal| Reply::Complete(Answer::Refused(refusal)))
    }

    fn find(&self, name: &JobName) -> Result<JobUid, Refusal> {
        self.uid_by_name
            .get(name)
            .cloned()
            .ok_or_else(|| Refusal::NoSuchJob(name.clone()))
    }

    fn submit(
        &mut self,
        mut record: JobRecord,
        validate_only: bool,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let (uid, name) = (record.uid.clone(), record.name.clone());
        if let Some(existing) = self.existing(&name, &record.spec, &record.request_id)? {
            return Ok(Reply::Job {
                uid: existing,
                existed: true,
            });
        }
        if self.tombstones.iter().any(|known| known.run.job == uid) {
            // Only a MusterJob object can submit the same uid twice. Nodes may have obeyed generations
            // of the deleted job with this uid.
            let message = format!(
                "job {name} was deleted in Muster; delete its MusterJob object and apply it again"
            );
            return Err(Refusal::Precondition(message));
        }
        record.awaited = self.awaited_by(&record)?;
        self.may_use_queue(&record)?;
        self.may_ask_to_tell(&record)?;
        self.has_share(&name, validate_only, scratch.now)?;
        if validate_only {
            self.may_plan(record.owner.as_ref(), scratch.now)?;
            let job = Box::new(crate::fleet::view::job(&record, &self.nodes));
            let plan = Box::new(self.plan(record, scratch));
            return Ok(Reply::Complete(Answer::Planned { job, plan }));
        }
        let message = format!(
            "job {name} accepted: {} nodes wanted, at least {}",
            record.replicas, record.spec.min_replicas
        );
        scratch
            .events
            .note("Submitted", message)
            .of_job(&uid, &name);
        if record.unended().next().is_some() {
            self.awaiting.insert(uid.clone());
        }
        self.jobs.insert(uid.clone(), record);
        self.uid_by_name.insert(name, uid.clone());
        self.active.insert(uid.clone());
        scratch.changes.jobs.insert(uid.clone(), None);
        Ok(Reply::Job {
            uid,
            existed: false,
        })
    }

    /// Whether the job may use the queue that it names, and whether its queue allows its priority.
    fn may_use_queue(&self, job: &JobRecord) -> Result<(), Refusal> {
        let (queues, priority) = (&self.policy.queues, job.spec.priority);
        let queue = ledger::queue_of(queues, job);
        if let (Some(named), Err(none)) = (&job.spec.queue, &queue) {
            let message = match queues.is_empty() {
                true => format!("is {named:?}, and this coordinator has no queues (--queues)"),
                false => none.to_string(),
            };
            return Err(Refusal::Invalid {
                field: "spec.queue".into(),
                message,
            });
        }
        let queue = queue.ok();
        let limit = queue.and_then(|queue| queues.max_priority(queue));
        match limit {
            Some((most, queue)) if priority > most => Err(Refusal::Invalid {
                field: "spec.priority".into(),
                message: format!(
                    "is {priority}, and queue {queue} allows at most {most} (maxPriority in --queues of the coordinator)"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Whether there is room for one more job of this namespace. If so, it counts as submitted, unless it
    /// is only checked.
    fn has_share(
        &mut self,
        name: &JobName,
        validate_only: bool,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let policy = &self.policy;
        if self.jobs.len() >= policy.jobs_max {
            return Err(Refusal::TooMany {
                what: "jobs",
                limit: policy.jobs_max,
            });
        }
        let namespace = &name.namespace;
        let has = || self.of_namespace(namespace);
        let have = has().count();
        if have >= policy.namespace_jobs_max {
            return Err(Refusal::NamespaceFull {
                namespace: namespace.clone(),
                have,
                over: has().filter(|job| job.is_over()).count(),
                limit: policy.namespace_jobs_max,
            });
        }
        if validate_only {
            return Ok(());
        }
        let taken = self.submissions.take(namespace, policy.submits(), now);
        taken.map_err(|again| Refusal::TooOften {
            namespace: namespace.clone(),
            per_second: policy.submits_per_second,
            burst: policy.submits_burst,
            again,
        })
    }

    /// Whether this caller may ask again what would become of a job.
    fn may_plan(&mut self, caller: Option<&Actor>, now: Timestamp) -> Result<(), Refusal> {
        let Some(caller) = caller else {
            return Ok(());
        };
        let rate = self.policy.plans;
        let taken = self.plans.take(&caller.to_string(), rate, now);
        taken.map_err(|again| Refusal::PlansTooOften {
            caller: caller.clone(),
            per_second: rate.per_second,
            burst: rate.burst,
            again,
        })
    }

    fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &JobRecord> {
        let first = JobName {
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let named = self.uid_by_name.range(first..);
        let own = named.take_while(move |(name, _)| name.namespace == namespace);
        own.filter_map(|(_, uid)| self.jobs.get(uid))
    }

    /// The job that this submission repeats. `None`: the submission is new. An error: the name is taken.
    fn existing(
        &self,
        name: &JobName,
        spec: &JobSpec,
        request_id: &str,
    ) -> Result<Option<JobUid>, Refusal> {
        let by_request = self.jobs.values().find(|job| {
            !request_id.is_empty()
                && job.request_id == request_id
                && job.name.namespace == name.namespace
        });
        let Some(job) = by_request.or_else(|| {
            self.uid_by_name
                .get(name)
                .and_then(|uid| self.jobs.get(uid))
        }) else {
            return Ok(None);
        };
        let mut differing = job.spec.differences(spec);
        if &job.name != name {
            differing.insert(0, "metadata.name");
        }
        if !differing.is_empty() {
            return Err(Refusal::JobExists {
                name: job.name.clone(),
                fields: differing.join(", "),
            });
        }
        if by_request.is_none() && job.is_over() {
            let message = format!(
                "job {name} exists already and is {:?}; delete it first (muster delete job {})",
                job.phase, name.name
            );
            return Err(Refusal::Precondition(message));
        }
        Ok(Some(job.uid.clone()))
    }

    /// Refuses to change a job that belongs to an object, unless the object asks. The object would
    /// change it back. `command` is what to use instead.
    fn refuse_owned(
        &self,
        uid: &JobUid,
        actor: &Actor,
        command: impl FnOnce(&JobName) -> String,
    ) -> Result<(), Refusal> {
        let job = &self.jobs[uid];
        let owned = self.policy.follows_jobs && job.is_of_object();
        if !owned || *actor == Actor::Object {
            return Ok(());
        }
        let name = &job.name;
        Err(Refusal::Precondition(format!(
            "job {name} belongs to a MusterJob object, so change the object: {} -n {}",
            command(name),
            name.namespace
        )))
    }

    fn scale(
        &mut self,
        name: &JobName,
        actor: &Actor,
        nodes: u32,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_owned(&uid, actor, |job| {
            format!("kubectl scale mj/{} --replicas={nodes}", job.name)
        })?;
        self.refuse_halted(&uid, name)?;
        let job = &self.jobs[&uid];
        let (min, max) = (job.spec.min_replicas, job.spec.max_replicas);
        if job.ends() {
            return Err(Refusal::Precondition(format!(
                "job {name} is {:?} and cannot be scaled",
                job.phase
            )));
        }
        if nodes < min || nodes > max {
            let message = format!(
                "is {nodes}, must be between the job's minReplicas {min} and maxReplicas {max}"
            );
            return Err(Refusal::Invalid {
                field: "nodes".into(),
                message,
            });
        }
        if let Some(message) = job.spec.no_size(nodes) {
            return Err(Refusal::Invalid {
                field: "nodes".into(),
                message,
            });
        }
        let before = job.replicas;
        // A user who asks for nodes may have mended nodes whose software did not match.
        if !job.stacks.is_empty() {
            let job = self.jobs.get_mut(&uid).expect("found above");
            scratch.changes.touch_job(job);
            job.stacks.clear();
        }
        if before != nodes {
            let job = self.jobs.get_mut(&uid).expect("found above");
            scratch.changes.touch_job(job);
            job.replicas = nodes;
            self.live.entry(uid.clone()).or_default().scaled = true;
            let message = format!("scaled from {before} to {nodes} nodes");
            scratch.events.note("Scaled", message).of_job(&uid, name);
        }
        Ok(Reply::Job { uid, existed: true })
    }

    fn cancel(&mut self, name: &JobName, scratch: &mut Scratch) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_halted(&uid, name)?;
        let is_under_way = match self.jobs[&uid].stage() {
            Stage::Over(end) if end.phase != Phase::Cancelled => {
                return Err(Refusal::Precondition(format!(
                    "job {name} is over already: {:?}",
                    end.phase
                )));
            }
            Stage::Ending(end) | Stage::Over(end) => end.phase == Phase::Cancelled,
            Stage::Waiting(_) | Stage::Forming(..) | Stage::Training(_) => false,
        };
        if !is_under_way {
            let ending = Ending {
                phase: Phase::Cancelled,
                reason: Reason::Cancelled,
                message: "cancelled by a user".into(),
            };
            let job = self.jobs.get_mut(&uid).expect("found above");
            scratch.changes.touch_job(job);
            scratch
                .events
                .note("CancelRequested", format!("{name} is being cancelled"))
                .of_job(&uid, name);
            ending::end(&self.nodes, job, ending);
        }
        Ok(Reply::Job { uid, existed: true })
    }

    fn suspend(
        &mut self,
        name: &JobName,
        actor: &Actor,
        suspended: bool,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_owned(&uid, actor, |job| {
            let patch = format!("{{\"spec\":{{\"suspend\":{suspended}}}}}");
            format!("kubectl patch mj/{} --type merge -p '{patch}'", job.name)
        })?;
        self.refuse_halted(&uid, name)?;
        let job = self.jobs.get_mut(&uid).expect("found above");
        if job.ends() {
            return Err(Refusal::Precondition(format!(
                "job {name} is {:?} and cannot be suspended or resumed",
                job.phase
            )));
        }
        if job.suspended != suspended {
            scratch.changes.touch_job(job);
            job.suspended = suspended;
            if !suspended {
                job.resumed = Some(scratch.now);
            }
            let (reason, message) = match suspended {
                true => ("Suspended", format!("{name} is suspended")),
                false => ("Resumed", format!("{name} is resumed")),
            };
            scratch.events.note(reason, message).of_job(&uid, name);
        }
        Ok(Reply::Job { uid, existed: true })
    }

    /// Gives a job another lifetime: deadlines and time to live. Only the shell that follows the job's
    /// object asks for it, and an object may change after the end, so that is no error.
    fn limit(
        &mut self,
        name: &JobName,
        lifetime: Lifetime,
        changes: &mut Changes,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_halted(&uid, name)?;
        let job = self.jobs.get_mut(&uid).expect("found above");
        if !job.ends() {
            changes.touch_job(job);
            job.spec.lifetime = lifetime;
        }
        Ok(Reply::Job { uid, existed: true })
    }

    fn delete(
        &mut self,
        name: &JobName,
        actor: &Actor,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_owned(&uid, actor, |job| format!("kubectl delete mj/{}", job.name))?;
        self.remove_job(&uid, name, "deleted", scratch)?;
        Ok(Reply::Complete(Answer::Done))
    }

    /// Deletes a job that is over and whose workers are all proven dead.
    pub(crate) fn remove_job(
        &mut self,
        uid: &JobUid,
        name: &JobName,
        why: &str,
        scratch: &mut Scratch,
    ) -> Result<(), Refusal> {
        self.refuse_halted(uid, name)?;
        let job = &self.jobs[uid];
        if !job.is_over() {
            let message = format!(
                "job {name} is {:?}; cancel it first (muster cancel {})",
                job.phase, name.name
            );
            return Err(Refusal::Precondition(message));
        }
        let unproven = |g: &crate::fleet::job::GenerationRecord| {
            g.members
                .iter()
                .map(|m| m.node.clone())
                .filter(|node| !g.dead.contains(node))
                .collect::<Vec<_>>()
        };
        if let Some(node) = job.unproven_generations().flat_map(unproven).next() {
            let message = format!(
                "{node} has not proven yet that its workers of {name} are dead; bring it back, or, if it is gone for good, \
                 say so (muster delete node {node})"
            );
            return Err(Refusal::Precondition(message));
        }
        self.leave_record(uid, scratch);
        let job = &self.jobs[uid];
        let nodes: Vec<NodeName> = job.nodes_used.iter().cloned().collect();
        let run = RunId {
            job: uid.clone(),
            generation: job.last_generation.max(Generation(1)),
        };
        scratch
            .events
            .note("Deleted", format!("job {name} {why}"))
            .of_job(uid, name);
        let tombstone = Tombstone {
            run,
            nodes,
            deleted: scratch.now,
        };
        self.tombstones.push(tombstone.clone());
        if self.tombstones.len() > TOMBSTONES_MAX {
            scratch
                .changes
                .forgotten
                .push(self.tombstones.remove(0).run.job);
        }
        self.jobs.remove(uid);
        self.uid_by_name.remove(name);
        self.active.remove(uid);
        self.live.remove(uid);
        self.nodes.forget_job(uid);
        scratch.changes.deleted.push(tombstone);
        Ok(())
    }

    fn cordon(
        &mut self,
        name: &NodeName,
        actor: &Actor,
        reason: String,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let now = scratch.now;
        let by = actor.to_string();
        for (field, text) in [("reason", &reason), ("by", &by)] {
            if text.len() > CORDON_TEXT_MAX {
                let message = format!(
                    "is {} bytes long, at most {CORDON_TEXT_MAX} are allowed",
                    text.len()
                );
                return Err(Refusal::Invalid {
                    field: field.into(),
                    message,
                });
            }
        }
        let Some(node) = self.nodes.get(name) else {
            return Err(Refusal::NoSuchNode(name.clone()));
        };
        // Muster's own cordons count against a cap, so a client's cordon is never recorded as
        // Muster's.
        let by = match CordonedBy::from(by) {
            CordonedBy::Muster => {
                let claimed = String::new();
                CordonedBy::Other(Actor::Unknown { claimed }.to_string())
            }
            other => other,
        };
        let cordon = Cordon {
            by,
            reason,
            at: cordon::moment(&node.record, now),
            jobs: Vec::new(),
        };
        cordon::set(&mut self.nodes, &self.jobs, name, Some(cordon), scratch);
        Ok(Reply::Node(name.clone()))
    }

    fn uncordon(&mut self, name: &NodeName, scratch: &mut Scratch) -> Result<Reply, Refusal> {
        let node = self
            .nodes
            .get(name)
            .ok_or_else(|| Refusal::NoSuchNode(name.clone()))?;
        if node.record.cordon.is_some() {
            cordon::set(&mut self.nodes, &self.jobs, name, None, scratch);
        }
        Ok(Reply::Node(name.clone()))
    }

    fn delete_node(&mut self, name: &NodeName, scratch: &mut Scratch) -> Result<Reply, Refusal> {
        let node = self
            .nodes
            .get(name)
            .ok_or_else(|| Refusal::NoSuchNode(name.clone()))?;
        if node.session.is_some() {
            return Err(Refusal::Precondition(format!(
                "{name} is connected; stop its agent first"
            )));
        }
        self.remove_node(name, &mut scratch.changes);
        let message = format!("{name} deleted by an operator: all its workers count as dead");
        scratch.events.warn("NodeDeleted", message).on_node(name);
        Ok(Reply::Complete(Answer::Done))
    }
}

/// Ranks that are named one by one. A world of 1,000 ranks is named by its size.
const RANKS_NAMED: usize = 8;

/// `SIGUSR1 was sent to rank 1 of generation 3`.
fn signalled(signal: i32, ranks: &[u32], generation: Generation) -> String {
    let named: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let to = match named.len() {
        1 => format!("rank {}", named[0]),
        2..=RANKS_NAMED => format!("ranks {}", named.join(", ")),
        many => format!("{many} ranks"),
    };
    format!(
        "{} was sent to {to} of generation {generation}",
        crate::signal::name(signal)
    )
}
