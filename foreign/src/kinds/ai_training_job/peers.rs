//! A job whose processes find each other by what each is told: the variables of its roles, such as
//! `TRAINER_HOSTS`. Each replica group becomes a role of framework `trainingjob`.

use muster_core::spec::{Framework, RuleDocument};

use super::{
    Job, Role, STYLE, Whole, edits,
    ends::{self, Fault},
    note, of_group, policy, processes, warn,
};
use crate::{
    draft::Converted,
    framework_draft::{FrameworkDraft, Group},
    launch::Launch,
    lends,
    roles::{self, Ends},
    tree::{Field, Value},
    verdict::Verdicts,
    words,
};

pub(super) fn read<'t>(
    job: &Job<'_, 't>,
    whole: &Whole<'t>,
    specs: &Field<'t>,
    all: &[Role<'t>],
    log: &mut Verdicts,
) -> Option<Converted> {
    let roles: Vec<&Role<'t>> = all.iter().collect();
    let processes = processes(all);
    if processes == 0 && !whole.is_refused(log) {
        log.refuse(specs, "has no process");
    }
    of_job(whole, log);
    let mut elastic = None;
    let sizes: Vec<_> = (roles.iter().enumerate())
        .map(|(i, role)| sizes(i, role, whole, &mut elastic, log))
        .collect();
    let (alone, each): (Vec<bool>, Vec<Ends>) = (roles.iter().enumerate())
        .map(|(i, role)| of_role(i, role, processes, whole, log))
        .unzip();
    let mut ends = failures(whole, &roles, each, log);
    let (services, success) = successes(whole, &roles, log);
    ends.rules.extend(success);
    // Each gives its refusals before any of them counts.
    let launches: Vec<_> = (roles.iter())
        .map(|role| {
            asks_no_node(role, &roles, log);
            let launch = match role.has_pod {
                true => roles::start(&role.pod, STYLE, log),
                false => None,
            };
            launch.unwrap_or_else(Launch::unknown)
        })
        .collect();
    if processes == 0 {
        return None;
    }
    let replicas = roles.iter().zip(launches);
    let replicas: Vec<roles::Role<'t>> = replicas
        .map(|(role, launch)| of_group(role, launch))
        .collect();
    let groups = (replicas.iter().zip(services)).zip(alone.into_iter().zip(sizes));
    let groups = groups.map(|((role, service), (restarts_alone, sizes))| Group {
        role,
        name: role.name.to_lowercase(),
        service,
        // A GPU is not a process.
        procs: Some(1),
        sizes,
        restarts_alone,
    });
    FrameworkDraft {
        kind: job.kind,
        meta: job.meta,
        framework: Framework::Trainingjob,
        groups: groups.collect(),
        ends,
        run: &whole.run,
    }
    .finish(log)
}

fn of_job(whole: &Whole<'_>, log: &mut Verdicts) {
    if let Some((at, _)) = &whole.framework {
        log.note(
            at,
            "is not needed: the processes are told what the operator tells them (spec.framework: trainingjob)",
        );
    }
    if let Some((at, _)) = &whole.tolerant {
        log.note(at, "is so: Muster survives the loss of a node");
    }
    let plugin = "has no effect: there are neither ssh keys nor a discover_hosts.sh; the variables of the roles list the hosts";
    warn(&whole.spec, &["plugin"], plugin, log);
    let metrics = "have no effect: muster scale changes the size";
    warn(&whole.spec, &["metrics"], metrics, log);
}

/// What one role says alone: whether its processes start again one by one, and what its failures mean.
fn of_role(
    i: usize,
    role: &Role<'_>,
    processes: i64,
    whole: &Whole<'_>,
    log: &mut Verdicts,
) -> (bool, Ends) {
    note(&role.spec, &["replicaType"], "is not needed", log);
    edits(role, log);
    if lends::idle(&role.pod).is_some() && role.pod.names_program {
        log.warn(
            &role.pod.container,
            "only waits, and no other process can start programs in it: there is no ssh here. If one runs horovodrun or mpirun, call its role launcher and make that its command",
        );
    }
    ports(role, processes, log);
    let own = role.spec.get("restartScope").filter(|at| !at.is_bare());
    let mut entries: Vec<(Option<Field<'_>>, Fault)> = Vec::new();
    let ends = ends::of(
        role,
        whole,
        &mut |at, fault, _| entries.push((at.cloned(), fault)),
        log,
    );
    let restarts = ends::restarts(role, whole);
    (scope(i, own, restarts, &entries, log), ends)
}

/// Upstream a role has the ports that its template lists. Here each process has one.
fn ports(role: &Role<'_>, processes: i64, log: &mut Verdicts) {
    let Some(list) = role.pod.container.node.entry("ports") else {
        return;
    };
    let Value::List(items) = &list.node.value else {
        return;
    };
    let told = |port: &&crate::tree::Node| {
        let name = port.text_at(&["name"]);
        name.is_some_and(|name| name.starts_with("aitj-"))
    };
    let count = items.iter().filter(told).count();
    let said =
        format!("has {count} ports that begin with aitj-, and Muster gives each process one");
    match (count, processes) {
        (0 | 1, _) => {}
        // Nobody else wants to know them.
        (_, 1) => log.warn(&role.pod.container, said),
        _ => log.refuse(&role.pod.container, said),
    }
}

/// The most and the least replicas, if they may change. `elastic`: the role whose number may change
/// already.
fn sizes<'t>(
    i: usize,
    role: &Role<'t>,
    whole: &Whole<'_>,
    elastic: &mut Option<&'t str>,
    log: &mut Verdicts,
) -> Option<(i64, i64)> {
    let replicas = role.replicas();
    if let Some((at, _)) = &role.replicas {
        log.taken(at, format!("spec.roles[{i}].replicas"));
    }
    let wanted = |field: &Option<(Field<'_>, i64)>| field.as_ref().map(|(_, count)| *count);
    let least = wanted(&role.least_wanted).unwrap_or(replicas);
    let most = wanted(&role.most_wanted).unwrap_or(replicas);
    let changes = (least, most) != (replicas, replicas);
    let other = elastic.filter(|_| changes);
    let is_taken = changes && whole.is_tolerant() && other.is_none();
    let fields = [
        ("minReplicas", &role.least_wanted),
        ("maxReplicas", &role.most_wanted),
    ];
    for (name, field) in fields {
        let Some((at, _)) = field else {
            continue;
        };
        match other {
            _ if !changes => log.note(at, "is so: the size stays"),
            _ if !whole.is_tolerant() => {
                log.note(at, "is not used, as upstream: faultTolerant is not true");
            }
            Some(other) => log.warn(
                at,
                format!(
                    "has no effect: one role may change its size here, and {other} does already"
                ),
            ),
            None => log.taken(at, format!("spec.roles[{i}].{name}")),
        }
    }
    is_taken.then(|| {
        *elastic = Some(role.name);
        (least, most)
    })
}

/// Whether a process that failed is started again alone. A role has one scope here, and upstream each of
/// its fault-tolerant entries has one as well. `restarts`: the role's own policy survives something.
fn scope(
    i: usize,
    own: Option<&Field<'_>>,
    restarts: bool,
    entries: &[(Option<Field<'_>>, Fault)],
    log: &mut Verdicts,
) -> bool {
    let is_pod = |at: &Field<'_>| matches!(&at.node.value, Value::Text(text) if text == "Pod");
    // Upstream a role that says nothing restarts all.
    let of_role = own.is_some_and(is_pod);
    let of_exits = entries.iter().filter(|(_, fault)| *fault == Fault::Exit);
    let of_exits = of_exits.map(|(at, _)| at.as_ref().map_or(of_role, is_pod));
    let mut votes: Vec<bool> = of_exits.collect();
    votes.extend(restarts.then_some(of_role));
    let alone = !votes.is_empty() && votes.iter().all(|vote| *vote);
    let own = own.map(|at| (at, Fault::Exit));
    let given = entries
        .iter()
        .filter_map(|(at, fault)| Some((at.as_ref()?, *fault)));
    for (at, fault) in own.into_iter().chain(given) {
        match (at.text(log), fault) {
            (Some("All"), _) => log.note(at, "is so: all processes of the job start again"),
            (Some("Pod"), Fault::Exit) if alone => {
                log.taken(at, format!("spec.roles[{i}].restartScope: member"));
            }
            (Some("Pod" | "Replica"), Fault::Exit) if votes.is_empty() => {
                log.note(at, "is not used: no failure of the role is survived");
            }
            (Some("Pod"), Fault::Exit) => log.warn(
                at,
                "has no effect: a role has one scope here, and other failures of this role restart all processes",
            ),
            (Some("Pod" | "Replica"), Fault::Event) => log.warn(
                at,
                "has no effect: after the loss of a node all processes of the job start again",
            ),
            (Some("Replica"), Fault::Exit) => {
                log.warn(at, "has no effect: all processes of the job start again");
            }
            (Some(other), _) => {
                log.refuse(at, format!("is {other:?}, must be All, Replica or Pod"));
            }
            (None, _) => {}
        }
    }
    alone
}

/// What the failures of all roles mean.
fn failures(whole: &Whole<'_>, roles: &[&Role<'_>], each: Vec<Ends>, log: &mut Verdicts) -> Ends {
    let any = "is so: a failure that is not survived fails the job";
    match whole.spec.text("failPolicy", log) {
        Some((at, "Any")) => log.note(at, any),
        Some((at, "All")) if roles.len() == 1 => log.note(at, "is so: there is one role"),
        Some((at, "All" | "None")) => log.warn(
            at,
            "has no effect: a failure of any role that is not survived fails the job",
        ),
        Some((at, other)) => log.refuse(at, format!("is {other:?}, must be Any, All or None")),
        None => {}
    }
    for role in roles {
        match policy(&role.spec, "failPolicy", log) {
            Some((at, "Any")) => log.note(at, any),
            Some((at, "All" | "Rank0")) if role.most() == 1 => log.note(at, any),
            Some((at, _)) => log.warn(
                at,
                "has no effect: a failure of any process that is not survived fails the job",
            ),
            None => {}
        }
    }
    ends::say_retried(whole, roles, log);
    match each.split_first() {
        None => Ends::default(),
        Some((first, others)) if others.iter().all(|other| other == first) => first.clone(),
        Some(_) => {
            let each = roles.iter().zip(each);
            let rules = each.flat_map(|(role, ends)| {
                ends.into_rules().of_role(&role.name.to_lowercase()).rules
            });
            Ends {
                policy: None,
                rules: rules.collect(),
            }
        }
    }
}

/// Which roles serve the others, and the rules by which the job has succeeded.
fn successes(
    whole: &Whole<'_>,
    roles: &[&Role<'_>],
    log: &mut Verdicts,
) -> (Vec<Option<bool>>, Vec<RuleDocument>) {
    let of_job = whole.spec.text("completePolicy", log);
    let any = matches!(of_job, Some((_, "Any")));
    let mut policies: Vec<Option<(Field<'_>, &str)>> = Vec::new();
    for role in roles {
        let given = policy(&role.spec, "completePolicy", log);
        policies.push(given.map(|(at, word)| (at.clone(), word)));
    }
    let words: Vec<&str> = (policies.iter())
        .map(|given| given.as_ref().map_or("All", |(_, word)| *word))
        .collect();
    let ending = words.iter().filter(|word| **word != "None").count();
    match of_job {
        Some((at, "Any" | "All")) if ending == 1 => {
            log.note(at, "is so: one role ends the job");
        }
        Some((at, "Any")) if ending == 0 => {
            log.note(at, "is not used: no role says when it is complete");
        }
        Some((at, "Any")) => log.taken(at, "part of spec.rules"),
        Some((at, "All")) => log.note(at, "is so"),
        Some((at, "None")) => log.warn(at, "has no effect: a job ends when its roles have"),
        Some((at, other)) => log.refuse(at, format!("is {other:?}, must be Any, All or None")),
        None => {}
    }
    let (mut services, mut rules) = (Vec::new(), Vec::new());
    for ((role, given), word) in roles.iter().zip(&policies).zip(words) {
        // With one process there is no difference.
        let of = match word {
            "Any" if role.most() > 1 => "any",
            "Rank0" if role.most() > 1 => "first",
            _ => "all",
        };
        let is_service = word == "None" && ending > 0;
        // The usual end is that all processes have succeeded.
        let needs_rule =
            !is_service && ending > 0 && (ending > 1 && any || ending == 1 && of != "all");
        let is_stricter = ending > 1 && !any && of != "all";
        services.push(is_service.then_some(true));
        if needs_rule {
            rules.push(RuleDocument {
                role: Some(role.name.to_lowercase()),
                ..roles::success_of(of)
            });
        }
        let Some((at, _)) = given else {
            continue;
        };
        match word {
            "None" if is_service => log.taken(
                at,
                "service: true; it is stopped when the other roles have ended",
            ),
            "None" => log.warn(
                at,
                "would leave the job without an end: it is over when all processes have succeeded",
            ),
            _ if is_stricter => log.warn(
                at,
                "has no effect: with several roles that end, all their processes must succeed",
            ),
            _ if needs_rule => log.taken(at, "part of spec.rules"),
            _ => log.note(at, "is so: all processes must succeed"),
        }
    }
    (services, rules)
}

/// Refuses `$(TRAINER_HOSTS)` in a command. The kubelet replaces it before the start. Here the hosts are
/// known only on the node.
fn asks_no_node(role: &Role<'_>, roles: &[&Role<'_>], log: &mut Verdicts) {
    let of_a_role = |name: &str| {
        let framework = Framework::Trainingjob;
        let mut roles = roles.iter();
        roles.any(|role| framework.sets_of_role(role.name, name))
    };
    for word in &role.pod.words {
        let names = word.text.split("$(").skip(1);
        let mut names = names.filter_map(|rest| Some(rest.split_once(')')?.0));
        if let Some(name) = names.find(|name| of_a_role(name)) {
            log.refuse(&word.field(), words::on_node(name));
        }
        if word.text.contains("_PORTS") {
            log.warn(
                &word.field(),
                "reads ports: each process has one of its own, so take those of others from the role's _HOSTS",
            );
        }
    }
}
