//! The replica groups of a job: how many, from which template, restarted when.
//!
//! Muster's job has one kind of member today. So groups are read one by one, and a kind's file puts
//! together those that are one world.

use muster_core::spec::{RESTARTS_MAX, RestartPolicyDocument, RuleDocument};

use crate::{
    fields::{Object, Rule, Rules},
    launch::{self, By, Launch},
    options::Cluster,
    pod::{Main, Pod},
    run_policy::RunPolicy,
    spelling::nearest,
    tree::Field,
    variables::Told,
    verdict::Verdicts,
    words::{self, Word},
};

/// One replica group.
#[derive(Clone, Debug)]
pub(crate) struct Role<'t> {
    /// The name as its kind or its file writes it, as `Worker`.
    pub(crate) name: &'t str,
    pub(crate) replicas: i64,
    pub(crate) replicas_at: Field<'t>,
    pub(crate) policy: Option<(Policy, Field<'t>)>,
    pub(crate) template: Field<'t>,
    pub(crate) pod: Pod<'t>,
    pub(crate) launch: Launch,
}

/// When a process that ended is started again, in the words of Kubernetes and Kubeflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Never,
    OnFailure,
    Always,
    ExitCode,
}

impl Policy {
    const ALL: [(&str, Policy); 4] = [
        ("Never", Policy::Never),
        ("OnFailure", Policy::OnFailure),
        ("Always", Policy::Always),
        ("ExitCode", Policy::ExitCode),
    ];

    pub(crate) fn read<'t>(field: &Field<'t>, log: &mut Verdicts) -> Option<(Policy, Field<'t>)> {
        let text = field.text(log)?;
        match Policy::ALL.iter().find(|(name, _)| *name == text) {
            Some((_, policy)) => Some((*policy, field.clone())),
            // As if it were not there.
            None if text.is_empty() => None,
            None => {
                log.refuse(
                    field,
                    format!("is {text:?}, must be one of Never, OnFailure, Always, ExitCode"),
                );
                None
            }
        }
    }
}

/// How a kind's containers start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) main: Main,
    pub(crate) told: Told,
    /// What an image of this kind starts by itself, so that a template may have arguments only.
    pub(crate) entrypoint: Option<By>,
    /// Whether a command is left as it is.
    pub(crate) as_is: bool,
}

const REPLICA: Rules = &[
    ("replicas", Rule::Read),
    ("restartPolicy", Rule::Read),
    ("template", Rule::Read),
];

/// Reads the groups of a job. The keys are `names`, in any case.
pub(crate) fn read<'t>(
    specs: &Field<'t>,
    names: &[&'static str],
    default_replicas: i64,
    style: Style,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Vec<Role<'t>> {
    let mut roles: Vec<Role<'t>> = Vec::new();
    for (key, field) in specs.entries(log) {
        let Some(name) = named(key, names, specs, &field, log) else {
            continue;
        };
        if roles.iter().any(|role| role.name == name) {
            log.refuse(&field, format!("{name} is there twice"));
            continue;
        }
        let same = roles
            .iter()
            .find(|other| {
                let template = field.node.entry("template");
                template.is_some_and(|entry| entry.node.says_the_same(other.template.node))
            })
            .cloned();
        roles.push(match same {
            Some(other) => like(&field, name, default_replicas, &other, log),
            None => {
                let start = |pod: &Pod<'_>, log: &mut Verdicts| start(pod, style, log);
                read_by(&field, name, default_replicas, style, start, cluster, log)
            }
        });
    }
    roles
}

/// The name of a group as its kind writes it, or as it is probably meant. `None`: it was refused.
pub(crate) fn named(
    key: &str,
    names: &[&'static str],
    specs: &Field<'_>,
    field: &Field<'_>,
    log: &mut Verdicts,
) -> Option<&'static str> {
    if let Some(name) = names.iter().find(|name| name.eq_ignore_ascii_case(key)) {
        return Some(name);
    }
    // A kind with one role leaves no choice.
    let only = match names {
        [only] => Some(*only),
        _ => None,
    };
    let Some(meant) = nearest(key, names).or(only) else {
        log.refuse(
            field,
            format!(
                "is no role of this kind; its roles are {}",
                names.join(", ")
            ),
        );
        return None;
    };
    log.refuse_name(
        field,
        format!("is no role of this kind; did you mean {meant}?"),
    );
    log.means(specs.below(meant));
    // What is wrong in it is told as well.
    let others = specs.entries(log);
    let is_there = others
        .iter()
        .any(|(key, _)| key.eq_ignore_ascii_case(meant));
    (!is_there).then(|| names.iter().find(|name| **name == meant).copied())?
}

/// Reads one group, with this way to find out what the containers start. What is refused in it is left
/// out, so that the rest is judged as well.
pub(crate) fn read_by<'t>(
    field: &Field<'t>,
    name: &'static str,
    default_replicas: i64,
    style: Style,
    start: impl Fn(&Pod<'_>, &mut Verdicts) -> Option<Launch>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Role<'t> {
    let spec = Object::walk(field, REPLICA, log);
    let (replicas, replicas_at, policy) = counted(&spec, field, default_replicas, log);
    let template = spec.get("template");
    if template.is_none() {
        log.lacks(field, "template");
    }
    let pod = template.and_then(|at| Pod::read(at, style.main, style.told, cluster, log));
    let launch = pod.as_ref().and_then(|pod| start(pod, log));
    let template = template.unwrap_or(field);
    Role {
        name,
        replicas,
        replicas_at,
        policy,
        template: template.clone(),
        pod: pod.unwrap_or_else(|| Pod::nothing(template)),
        launch: launch.unwrap_or_else(Launch::unknown),
    }
}

/// A group whose template is that of another one, which has the verdicts.
fn like<'t>(
    field: &Field<'t>,
    name: &'static str,
    default_replicas: i64,
    other: &Role<'t>,
    log: &mut Verdicts,
) -> Role<'t> {
    let spec = Object::walk(field, REPLICA, log);
    let template = spec.get("template").unwrap_or(field);
    log.note(template, format!("is the same as that of {}", other.name));
    let (replicas, replicas_at, policy) = counted(&spec, field, default_replicas, log);
    Role {
        name,
        replicas,
        replicas_at,
        policy,
        template: template.clone(),
        ..other.clone()
    }
}

/// How many replicas, where that stands, and the restart policy.
#[allow(clippy::type_complexity, reason = "it is taken apart at once")]
fn counted<'t>(
    spec: &Object<'t>,
    field: &Field<'t>,
    default: i64,
    log: &mut Verdicts,
) -> (i64, Field<'t>, Option<(Policy, Field<'t>)>) {
    let at = match spec.get("replicas") {
        Some(at) => at.clone(),
        // A misspelt name is in the place of the right one.
        None if log.is_settled(&field.below("replicas")) => Field {
            path: field.below("replicas"),
            ..field.clone()
        },
        None => field.clone(),
    };
    let replicas = spec.whole("replicas", log).map(|(_, count)| count);
    let replicas = replicas.unwrap_or(default);
    let policy = spec
        .get("restartPolicy")
        .and_then(|field| Policy::read(field, log));
    (replicas, at, policy)
}

/// What a pod's container starts. `None`: it was refused.
pub(crate) fn start(pod: &Pod<'_>, style: Style, log: &mut Verdicts) -> Option<Launch> {
    let python = pod.python.as_deref().unwrap_or("python3");
    let launch = match (pod.names_program, style.entrypoint) {
        (false, Some(by)) if !pod.words.is_empty() => {
            launch::arguments(by, python, &pod.words, log)
        }
        (false, _) => {
            log.refuse(
                &pod.container,
                "runs what its image starts, which is not known here; name it with --command, or with `images` in the site map",
            );
            None
        }
        (true, _) if style.as_is => as_it_is(pod, log),
        (true, _) => launch::read(&pod.words, &pod.variables.known, log),
    };
    let mut launch = launch?;
    if let Some(python) = &pod.python {
        launch.use_python(python);
    }
    // Muster gives every rank torchrun's variables, but not those that torchrun itself reads.
    if launch.by == By::Itself
        && !launch.broken
        && style.told.prefixes.contains(&"PET_")
        && launch.mentions("PET_")
    {
        log.refuse(
            &pod.container,
            "reads PET_ variables in its command, which Muster does not set; RANK and WORLD_SIZE are there",
        );
        return None;
    }
    Some(launch)
}

/// A command that is not looked into. The kubelet would have written all values into it.
fn as_it_is(pod: &Pod<'_>, log: &mut Verdicts) -> Option<Launch> {
    launch::refuse_fetched(&pod.words, log);
    let unknown = |word: &Word| Some((word.field(), words::on_node(word.on_node.as_ref()?)));
    match pod.words.iter().find_map(unknown) {
        None => Some(launch::program(&pod.words)),
        Some((at, why)) => {
            log.refuse(&at, why);
            None
        }
    }
}

/// The exit codes that `ExitCode` restarts for: those of training-operator, and those of the older
/// library of the TorchElastic controller. A process that a signal ended has 128 and its number.
pub(crate) const RETRIED: &str = "128-255";
pub(crate) const RETRIED_BY_ELASTIC_JOB: &str = "130,137,138,143";

/// What failures, and the success of some, mean for a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ends {
    pub(crate) policy: Option<RestartPolicyDocument>,
    pub(crate) rules: Vec<RuleDocument>,
}

impl Ends {
    /// The same, where the rules are about the failures of one role. Those of others go the usual way.
    pub(crate) fn of_role(self, role: &str) -> Ends {
        let rules = self.rules.into_iter().map(|rule| of_role(role, rule));
        Ends {
            rules: rules.collect(),
            ..self
        }
    }

    /// The same as rules alone, so that another role may have other ends.
    pub(crate) fn into_rules(mut self) -> Ends {
        if let Some(policy) = self.policy.take() {
            self.rules.push(match policy.max_restarts {
                Some(0) => failure_is_final(),
                limit => restart("failure", limit),
            });
        }
        self
    }

    /// The same, where they are about the launcher of an elastic world. It would have survived failed
    /// ranks by itself, so these have a limit of their own: that of their role, or the usual one.
    pub(crate) fn of_launcher(self, launcher: &str, ranks: &str, limit: Option<i64>) -> Ends {
        let restarts = self.policy.as_ref().and_then(|policy| policy.max_restarts);
        let rule = match limit {
            Some(0) => Some(failure_is_final()),
            Some(limit) => Some(restart("failure", Some(limit))),
            // As many as a job survives that says nothing.
            None if restarts.is_some_and(|max| max < RESTARTS_MAX) => Some(RuleDocument {
                within: Some("1h".into()),
                ..restart("failure", Some(3))
            }),
            None => None,
        };
        let mut ends = self.of_role(launcher);
        ends.rules.extend(rule.map(|rule| of_role(ranks, rule)));
        ends
    }
}

fn of_role(role: &str, rule: RuleDocument) -> RuleDocument {
    RuleDocument {
        role: Some(role.to_owned()),
        ..rule
    }
}

/// A rule that restarts, so often in the life of the job.
pub(crate) fn restart(when: &str, limit: Option<i64>) -> RuleDocument {
    RuleDocument {
        when: when.into(),
        then: "restart".into(),
        limit: limit.map(|limit| limit.min(RESTARTS_MAX)),
        ..RuleDocument::default()
    }
}

/// The rule that no failure of the job is survived, unless one before it says so.
pub(crate) fn failure_is_final() -> RuleDocument {
    RuleDocument {
        when: "failure".into(),
        then: "fail".into(),
        ..RuleDocument::default()
    }
}

/// The rule that the job has succeeded when `any` of its nodes has, or the `first`.
pub(crate) fn success_of(of: &str) -> RuleDocument {
    RuleDocument {
        when: "success".into(),
        of: Some(of.into()),
        then: "succeed".into(),
        ..RuleDocument::default()
    }
}

/// Upstream counts restarts without a window. This is the longest one.
pub(crate) fn in_all(max: i64) -> RestartPolicyDocument {
    RestartPolicyDocument {
        max_restarts: Some(max.min(RESTARTS_MAX)),
        window: Some("720h".into()),
        max_same_failures: None,
    }
}

/// What policy and limits mean together. `own` is how many failures the launcher in the pods survives
/// by itself; `codes` are the exit codes that `ExitCode` restarts for.
pub(crate) fn restarts(
    policy: Option<&(Policy, Field<'_>)>,
    default: Policy,
    run: &RunPolicy<'_>,
    own: Option<i64>,
    codes: &str,
    log: &mut Verdicts,
) -> Ends {
    let kind = policy.map_or(default, |(policy, _)| *policy);
    say_limit(&[kind], run, log);
    if let Some(policy) = policy {
        say_policy(policy, codes, log);
    }
    ends(kind, run, own, codes)
}

/// What the policies of several roles mean together. Where they differ, each is a rule of its role.
pub(crate) fn restarts_by_role(
    roles: &[Role<'_>],
    default: Policy,
    run: &RunPolicy<'_>,
    log: &mut Verdicts,
) -> Ends {
    let kind = |role: &Role<'_>| role.policy.as_ref().map_or(default, |(kind, _)| *kind);
    let kinds: Vec<Policy> = roles.iter().map(kind).collect();
    say_limit(&kinds, run, log);
    for policy in roles.iter().filter_map(|role| role.policy.as_ref()) {
        say_policy(policy, RETRIED, log);
    }
    if let Some(first) = kinds.first()
        && kinds.iter().all(|kind| kind == first)
    {
        return ends(*first, run, None, RETRIED);
    }
    let mut all = Ends::default();
    for (role, kind) in roles.iter().zip(kinds) {
        let ends = ends(kind, run, None, RETRIED).of_role(&role.name.to_lowercase());
        all.policy = all.policy.or(ends.policy);
        all.rules.extend(ends.rules);
    }
    all
}

fn say_limit(kinds: &[Policy], run: &RunPolicy<'_>, log: &mut Verdicts) {
    let Some((_, at)) = &run.backoff_limit else {
        return;
    };
    let counted = |kind: &&Policy| matches!(kind, Policy::OnFailure | Policy::Always);
    match kinds.iter().find(counted).or(kinds.first()) {
        Some(Policy::Never) => log.note(at, "is not counted under Never, as upstream"),
        Some(Policy::ExitCode) => log.note(at, "is not counted under ExitCode, as upstream"),
        _ => log.taken(
            at,
            "spec.restartPolicy.maxRestarts; an incident counts once, however many pods it stops",
        ),
    }
}

fn say_policy((kind, at): &(Policy, Field<'_>), codes: &str, log: &mut Verdicts) {
    match kind {
        Policy::Never => log.taken(
            at,
            "part of spec.rules; a node that is lost is replaced all the same",
        ),
        Policy::OnFailure => log.taken(at, "spec.restartPolicy"),
        Policy::Always => log.warn(at, "restarts after failures only, not after success"),
        Policy::ExitCode => log.taken(
            at,
            format!("part of spec.rules: a rank that ends with one of {codes} is restarted"),
        ),
    }
}

fn ends(kind: Policy, run: &RunPolicy<'_>, own: Option<i64>, codes: &str) -> Ends {
    let own = own.filter(|own| *own > 0);
    let limit = run.backoff_limit.as_ref().map(|(limit, _)| *limit);
    // An end that the launcher in the pods survives never reaches the policy of the job.
    let last = match own {
        Some(own) => restart("failure", Some(own)),
        None => failure_is_final(),
    };
    match kind {
        Policy::OnFailure | Policy::Always => Ends {
            policy: Some(in_all(limit.or(own).unwrap_or(RESTARTS_MAX))),
            rules: Vec::new(),
        },
        Policy::Never => Ends {
            policy: None,
            rules: vec![last],
        },
        Policy::ExitCode => {
            let retried = RuleDocument {
                codes: Some(codes.into()),
                ..restart("exit", Some(RESTARTS_MAX))
            };
            Ends {
                policy: None,
                rules: vec![retried, last],
            }
        }
    }
}
