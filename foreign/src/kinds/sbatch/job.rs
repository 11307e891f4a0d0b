//! Puts the job of a batch script together, and reports what core finds wrong with it at the option that says
//! it.

use std::time::Duration;

use muster_core::{
    period,
    spec::{API_VERSION, JobDocument, KIND, Metadata, RuleDocument, SpecDocument},
};

use super::{
    asked::{Asked, At},
    body::{Body, Run},
    command::{self, Made, Ranks},
    count::{Count, tasks_per_node},
    values::Values,
};
use crate::{
    draft::{Converted, Size, may_stay},
    grace::GRACE_MAX,
    kinds::{Sizes, nodes},
    launch::{By, Launch, Procs},
    options::Options,
    procs, roles,
    run_policy::RunPolicy,
    tree::{Field, Place},
    verdict::Verdicts,
};

/// What is known of the job but for its command.
pub(super) struct Job<'a> {
    pub(super) asked: Asked,
    pub(super) count: Count,
    /// The shell of the first line, and whether it logs in.
    pub(super) shell: (&'static str, bool),
    pub(super) name: String,
    pub(super) start: Field<'static>,
    pub(super) options: &'a Options,
}

impl Job<'_> {
    /// The job, if nothing speaks against it.
    pub(super) fn finish(
        &self,
        body: &Body,
        run: &Run,
        values: &Values,
        log: &mut Verdicts,
    ) -> Option<Converted> {
        let (launch, parts) = command::launch(run, values, log);
        let launch = launch?;
        let before = log.refused();
        let tasks = self.tasks(run, &launch, log);
        let gpus = self.count.gpus.as_ref().map_or(0, |(gpus, _)| *gpus);
        let procs = match launch.by {
            By::Itself => tasks,
            _ => procs::count(&launch, None, Procs::Count(1), gpus, &run.at, log).unwrap_or(1),
        };
        if self.count.gpus.is_none() {
            log.warn(&run.at, "gets no GPU, because the script asks for none; say --gpus-per-node, or --gpus-per-node=0 if that is meant");
        }
        let (min, max) = self.count.nodes;
        let size = |count: i64| -> Size<'static> { (count, self.count.nodes_at.clone()) };
        let sizes = Sizes {
            replicas: size(max),
            min: (min != max).then(|| size(min)),
            max: (min != max).then(|| size(max)),
        };
        let sizes = nodes(&launch, sizes, &[], log);
        let most = sizes.max.as_ref().map_or(max, |(max, _)| *max);
        let ranks = Ranks {
            asked: &self.asked,
            shell: self.shell,
            body,
            run,
            launch: &launch,
            parts: &parts,
            values,
        };
        let made = ranks.made(log);
        if launch.broken
            || log.refused() > before
            || !may_stay(&launch, most.saturating_mul(procs), log)
        {
            return None;
        }
        let mut document = self.document(sizes, procs, gpus, &launch, made, log);
        let of_step = run.step.as_ref().and_then(|step| step.image.clone());
        let image = of_step.or(self.asked.image.clone());
        document.spec.image = image.map(|(image, _)| image);
        self.checked(document, run, log)
    }

    fn document(
        &self,
        sizes: Sizes<'static>,
        procs: i64,
        gpus: i64,
        launch: &Launch,
        made: Made,
        log: &mut Verdicts,
    ) -> JobDocument {
        let asked = &self.asked;
        let run = RunPolicy::default();
        // Slurm starts no script again that has failed.
        let own = launch.max_restarts;
        let ends = roles::restarts(None, roles::Policy::Never, &run, own, "", log);
        let lost = RuleDocument {
            when: "nodeLost".into(),
            then: "fail".into(),
            ..RuleDocument::default()
        };
        let rules = asked.no_requeue.iter().map(|_| lost.clone());
        let names = |list: &At<Vec<String>>| list.clone().map_or(Vec::new(), |(names, _)| names);
        let number = |number: &At<i64>| number.as_ref().map(|(number, _)| *number);
        let grace = number(&asked.grace).or(launch.grace);
        let grace = grace.map(|seconds| seconds.clamp(0, GRACE_MAX) as u64);
        JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: self.name.clone(),
                namespace: self.options.namespace.clone(),
            },
            spec: SpecDocument {
                replicas: Some(sizes.replicas.0),
                min_replicas: sizes.min.map(|(min, _)| min),
                max_replicas: sizes.max.map(|(max, _)| max),
                proc_per_node: Some(procs),
                gpus_per_node: Some(gpus),
                command: made.command,
                args: made.args,
                env: made.env,
                working_dir: made.dir,
                priority: number(&asked.priority),
                restart_policy: ends.policy,
                rules: rules.chain(ends.rules).collect(),
                suspend: asked.suspend.then_some(true),
                active_deadline_seconds: number(&asked.deadline),
                stop_grace_period: grace.map(|grace| period::format(Duration::from_secs(grace))),
                launch: made.lane.map(str::to_owned),
                node_selector: asked.selector.iter().cloned().collect(),
                node_list: names(&asked.node_list),
                exclude_nodes: names(&asked.exclude),
                notify: asked.notify.clone(),
                ..SpecDocument::default()
            },
        }
    }

    /// Tasks on each node, as the step says them.
    fn tasks(&self, run: &Run, launch: &Launch, log: &mut Verdicts) -> i64 {
        let Some(step) = &run.step else {
            if self.count.nodes.1 > 1 {
                log.refuse(&run.at, format!("runs on the first of {} nodes only, because srun does not stand before it; put it there", self.count.nodes.1));
            }
            return 1;
        };
        if let Some(((_, most), at)) = &step.nodes {
            match *most == self.count.nodes.1 {
                true => log.note(at, "says the same as the job"),
                false => log.refuse(
                    at,
                    format!(
                        "asks for {most} of the {} nodes of the job, and the others would wait; make them the same",
                        self.count.nodes.1
                    ),
                ),
            }
        }
        let gpus = [&step.gpus, &step.gpus_per_node, &step.gpus_per_task];
        for (_, at) in gpus.into_iter().flatten() {
            match self.count.gpus {
                Some(_) => log.note(
                    at,
                    "is not used: each rank sees all GPUs that the job has on its node",
                ),
                None => log.refuse(at, "is for the step alone; say it in a line for sbatch"),
            }
        }
        let said = step.tasks.is_some() || step.tasks_per_node.is_some();
        let tasks = match said {
            true => tasks_per_node(&self.asked, self.count.nodes, log),
            false => self.count.tasks,
        };
        match launch.by {
            By::Itself if launch.stays.is_some() => {}
            By::Itself => log.warn(&run.at, "finds no variable of Slurm here (SLURM_PROCID and others): it must read RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR, as under torchrun"),
            _ if tasks > 1 => log.refuse(&run.at, format!("starts {tasks} launchers on each node, each of them with all ranks; say --ntasks-per-node=1")),
            _ => {}
        }
        tasks
    }

    /// The job, if core takes it.
    fn checked(&self, document: JobDocument, run: &Run, log: &mut Verdicts) -> Option<Converted> {
        let mut checked = document.clone();
        // The caller makes a relative directory absolute.
        checked.spec.working_dir = None;
        let errors = checked.check().err().unwrap_or_default();
        let place = |at: Option<&Field<'static>>| at.cloned().unwrap_or_else(|| run.at.clone());
        let asked = &self.asked;
        for error in &errors {
            let path = error.path.as_str();
            let at = match path {
                "spec.replicas" | "spec.minReplicas" | "spec.maxReplicas" => {
                    self.count.nodes_at.clone()
                }
                "spec.gpusPerNode" => place(self.count.gpus.as_ref().map(|(_, at)| at)),
                "spec.activeDeadlineSeconds" => place(asked.deadline.as_ref().map(|(_, at)| at)),
                "spec.stopGracePeriod" => place(asked.grace.as_ref().map(|(_, at)| at)),
                "spec.priority" => place(asked.priority.as_ref().map(|(_, at)| at)),
                _ if path.starts_with("spec.nodeList") => {
                    place(asked.node_list.as_ref().map(|(_, at)| at))
                }
                _ if path.starts_with("spec.excludeNodes") => {
                    place(asked.exclude.as_ref().map(|(_, at)| at))
                }
                _ if path.starts_with("spec.nodeSelector") => place(asked.selector_at.as_ref()),
                _ if path.starts_with("metadata") => {
                    place(asked.name.as_ref().map(|(_, at)| at).or(Some(&self.start)))
                }
                _ => run.at.clone(),
            };
            log.refuse(&at, format!("{path}: {}", error.message));
        }
        errors.is_empty().then_some(Converted {
            place: Place::START,
            kind: "batch script",
            document,
            object: None,
        })
    }
}
