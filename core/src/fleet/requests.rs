//! What users ask for. A request is refused with a reason or changes a record; what follows from
//! the change is `settle`'s.

use crate::{
    fleet::{
        Answer, Cordon, Fleet, MUSTER, Refusal, Request,
        desired::{TOMBSTONES_MAX, Tombstone},
        job::{Ending, JobRecord, Phase},
        turn::{Reply, Scratch},
    },
    id::{Generation, JobName, JobUid, NodeName},
    planted::{self, Mistake},
    run::RunId,
    spec::JobSpec,
    time::Timestamp,
};

/// Longest reason of a cordon, in bytes.
const CORDON_TEXT_MAX: usize = 512;

impl Fleet {
    pub(crate) fn request(
        &mut self,
        request: Request,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Reply {
        let reply = match request {
            Request::Submit {
                name,
                spec,
                uid,
                request_id,
                validate_only,
            } => self.submit(name, spec, uid, request_id, validate_only, now, scratch),
            Request::Scale { name, nodes } => self.scale(&name, nodes, now, scratch),
            Request::Cancel { name } => self.cancel(&name, now, scratch),
            Request::Delete { name } => self.delete(&name, now, scratch),
            Request::Cordon { node, by, reason } => self.cordon(&node, by, reason, now, scratch),
            Request::Uncordon { node } => self.uncordon(&node, now, scratch),
            Request::DeleteNode { node } => self.delete_node(&node, now, scratch),
        };
        reply.unwrap_or_else(|refusal| Reply::Ready(Answer::Refused(refusal)))
    }

    fn find(&self, name: &JobName) -> Result<JobUid, Refusal> {
        self.names
            .get(name)
            .cloned()
            .ok_or_else(|| Refusal::NoSuchJob(name.clone()))
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one request")]
    fn submit(
        &mut self,
        name: JobName,
        spec: JobSpec,
        uid: JobUid,
        request_id: String,
        validate_only: bool,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        if let Some(existing) = self.existing(&name, &spec, &request_id)? {
            return Ok(Reply::Job {
                uid: existing,
                existed: true,
            });
        }
        if self.jobs.len() >= self.policy.jobs_max {
            return Err(Refusal::TooMany {
                what: "jobs",
                limit: self.policy.jobs_max,
            });
        }
        let record = JobRecord::submitted(uid.clone(), name.clone(), spec, request_id, now);
        if validate_only {
            let view = crate::fleet::view::job(&record, &self.nodes);
            return Ok(Reply::Ready(Answer::Job {
                job: Box::new(view),
                existed: false,
            }));
        }
        let message = format!(
            "job {name} accepted: {} nodes wanted, at least {}",
            record.replicas, record.spec.min_replicas
        );
        self.event(
            scratch,
            now,
            false,
            "Submitted",
            message,
            Some((&uid, &name, None)),
            None,
        );
        self.jobs.insert(uid.clone(), record);
        self.names.insert(name, uid.clone());
        self.active.insert(uid.clone());
        scratch.jobs.insert(uid.clone(), None);
        Ok(Reply::Job {
            uid,
            existed: false,
        })
    }

    /// The job a repeated submission means, or why the name cannot be used.
    fn existing(
        &self,
        name: &JobName,
        spec: &JobSpec,
        request_id: &str,
    ) -> Result<Option<JobUid>, Refusal> {
        let by_request = self.jobs.values().find(|job| {
            !request_id.is_empty()
                && job.request_id == request_id
                && !planted::on(Mistake::RequestIdIgnored)
        });
        let Some(job) =
            by_request.or_else(|| self.names.get(name).and_then(|uid| self.jobs.get(uid)))
        else {
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
        if by_request.is_none() && job.phase.is_over() {
            let message = format!(
                "job {name} exists already and is {:?}; delete it first (muster delete job {})",
                job.phase, name.name
            );
            return Err(Refusal::Precondition(message));
        }
        Ok(Some(job.uid.clone()))
    }

    fn scale(
        &mut self,
        name: &JobName,
        nodes: u32,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_halted(&uid, name)?;
        let job = &self.jobs[&uid];
        let (min, max) = (job.spec.min_replicas, job.spec.max_replicas);
        if job.phase.is_over() || job.ending.is_some() {
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
        let before = job.replicas;
        // Whoever asks for nodes may have mended those that were odd.
        if !job.stacks.is_empty() {
            self.touch_job(&uid, scratch);
            self.jobs.get_mut(&uid).expect("found above").stacks.clear();
        }
        if before != nodes {
            self.touch_job(&uid, scratch);
            let job = self.jobs.get_mut(&uid).expect("found above");
            job.replicas = nodes;
            self.live(&uid).scaled = true;
            let message = format!("scaled from {before} to {nodes} nodes");
            self.event(
                scratch,
                now,
                false,
                "Scaled",
                message,
                Some((&uid, name, None)),
                None,
            );
        }
        Ok(Reply::Job { uid, existed: true })
    }

    fn cancel(
        &mut self,
        name: &JobName,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_halted(&uid, name)?;
        let phase = self.jobs[&uid].phase;
        match phase {
            Phase::Cancelled => return Ok(Reply::Job { uid, existed: true }),
            Phase::Succeeded | Phase::Failed if planted::on(Mistake::TerminalReopened) => {
                self.touch_job(&uid, scratch);
                self.jobs.get_mut(&uid).expect("found above").phase = Phase::Stopping;
            }
            Phase::Succeeded | Phase::Failed => {
                return Err(Refusal::Precondition(format!(
                    "job {name} is over already: {phase:?}"
                )));
            }
            _ => {}
        }
        if self.jobs[&uid]
            .ending
            .as_ref()
            .is_none_or(|ending| ending.phase != Phase::Cancelled)
        {
            let ending = Ending {
                phase: Phase::Cancelled,
                reason: "Cancelled".into(),
                message: "cancelled by a user".into(),
            };
            self.touch_job(&uid, scratch);
            self.event(
                scratch,
                now,
                false,
                "CancelRequested",
                format!("{name} is being cancelled"),
                Some((&uid, name, None)),
                None,
            );
            self.end(&uid, ending);
        }
        Ok(Reply::Job { uid, existed: true })
    }

    fn delete(
        &mut self,
        name: &JobName,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let uid = self.find(name)?;
        self.refuse_halted(&uid, name)?;
        let job = &self.jobs[&uid];
        if !job.phase.is_over() {
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
        if let Some(node) = job
            .unproven_generations()
            .flat_map(unproven)
            .next()
            .filter(|_| !planted::on(Mistake::DeletedUnproven))
        {
            let message = format!(
                "{node} has not proven yet that its workers of {name} are dead; bring it back, or, if it is gone for good, \
                 say so (muster delete node {node})"
            );
            return Err(Refusal::Precondition(message));
        }
        let nodes: Vec<NodeName> = job.nodes_used.iter().cloned().collect();
        let run = RunId {
            job: uid.clone(),
            generation: job.last_generation.max(Generation(1)),
        };
        self.event(
            scratch,
            now,
            false,
            "Deleted",
            format!("job {name} deleted"),
            Some((&uid, name, None)),
            None,
        );
        self.tombstones.push(Tombstone {
            run,
            nodes: nodes.clone(),
        });
        if self.tombstones.len() > TOMBSTONES_MAX {
            self.tombstones.remove(0);
        }
        self.jobs.remove(&uid);
        self.names.remove(name);
        self.active.remove(&uid);
        self.live.remove(&uid);
        for node in self.nodes.nodes.values_mut() {
            node.jobs.remove(&uid);
        }
        scratch.deleted.push((uid, nodes));
        Ok(Reply::Ready(Answer::Done))
    }

    fn cordon(
        &mut self,
        name: &NodeName,
        by: String,
        reason: String,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
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
        if self.nodes.get(name).is_none() {
            return Err(Refusal::NoSuchNode(name.clone()));
        }
        let by = if by.is_empty() || by == MUSTER {
            "unknown user".to_owned()
        } else {
            by
        };
        self.set_cordon(
            name,
            Some(Cordon {
                by,
                reason,
                at: now,
            }),
            now,
            scratch,
        );
        Ok(Reply::Node(name.clone()))
    }

    fn uncordon(
        &mut self,
        name: &NodeName,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let node = self
            .nodes
            .get(name)
            .ok_or_else(|| Refusal::NoSuchNode(name.clone()))?;
        if node.record.cordon.is_some() {
            self.set_cordon(name, None, now, scratch);
        }
        Ok(Reply::Node(name.clone()))
    }

    pub(crate) fn set_cordon(
        &mut self,
        name: &NodeName,
        cordon: Option<Cordon>,
        now: Timestamp,
        scratch: &mut Scratch,
    ) {
        self.touch_node(name, scratch);
        let Some(node) = self.nodes.nodes.get_mut(name) else {
            return;
        };
        let message = match &cordon {
            Some(cordon) => format!("{name} cordoned by {}: {}", cordon.by, cordon.reason),
            None => format!("{name} uncordoned"),
        };
        let (warning, reason) = (
            cordon.is_some(),
            if cordon.is_some() {
                "NodeCordoned"
            } else {
                "NodeUncordoned"
            },
        );
        if cordon.is_none() {
            // A person has looked: the old evidence is spent.
            node.record.marks.clear();
        }
        node.record.cordon = cordon;
        self.event(scratch, now, warning, reason, message, None, Some(name));
        self.node_changed(name, scratch);
    }

    fn delete_node(
        &mut self,
        name: &NodeName,
        now: Timestamp,
        scratch: &mut Scratch,
    ) -> Result<Reply, Refusal> {
        let node = self
            .nodes
            .get(name)
            .ok_or_else(|| Refusal::NoSuchNode(name.clone()))?;
        if node.session.is_some() {
            return Err(Refusal::Precondition(format!(
                "{name} is connected; stop its agent first"
            )));
        }
        self.node_changed(name, scratch);
        for uid in self.active.clone() {
            self.touch_job(&uid, scratch);
            for generation in self
                .jobs
                .get_mut(&uid)
                .into_iter()
                .flat_map(JobRecord::unproven_generations_mut)
            {
                if generation.has(name) {
                    generation.dead.insert(name.clone());
                }
            }
        }
        self.nodes.forget(name);
        self.halted.remove(name);
        let message = format!("{name} deleted by an operator: all its workers count as dead");
        self.event(scratch, now, true, "NodeDeleted", message, None, Some(name));
        Ok(Reply::Ready(Answer::Done))
    }
}
