//! The volumes that the container mounts. Without containers a path is the node's own, so a volume
//! is right only where the node has the same thing at the same path.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fields::{Object, Rule, Rules},
    options::Cluster,
    tree::Field,
    verdict::Verdicts,
};

const MOUNT: Rules = &[
    ("name", Rule::Read),
    ("mountPath", Rule::Read),
    ("subPath", Rule::Read),
    (
        "subPathExpr",
        Rule::Refuse("depends on the pod, and there is none here"),
    ),
    (
        "readOnly",
        Rule::Warn("has no effect: files have the rights of the node"),
    ),
    (
        "recursiveReadOnly",
        Rule::Warn("has no effect: files have the rights of the node"),
    ),
    (
        "mountPropagation",
        Rule::Note("has no effect: nothing is mounted"),
    ),
];

/// Reads the volumes, of which the container mounts some.
pub(super) fn read(
    volumes: Option<&Field<'_>>,
    mounts: Option<&Field<'_>>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) {
    let volumes = volumes.map(|field| field.items(log)).unwrap_or_default();
    let named: BTreeMap<&str, &Field<'_>> = volumes
        .iter()
        .filter_map(|volume| Some((volume.node.text_at(&["name"])?, volume)))
        .collect();
    let mut used = BTreeSet::new();
    for mount in mounts.map(|field| field.items(log)).unwrap_or_default() {
        let object = Object::walk(&mount, MOUNT, log);
        let Some((at, wanted)) = object.text("name", log) else {
            continue;
        };
        let Some((_, path)) = object.text("mountPath", log) else {
            continue;
        };
        let sub = object.text("subPath", log).map(|(_, sub)| sub);
        let full = match sub {
            Some(sub) => format!("/{}", sub.trim_matches('/')),
            None => String::new(),
        };
        match named.get(wanted) {
            Some(volume) => {
                used.insert(wanted);
                log.note(&mount, "is the same path on the nodes");
                take_volume(volume, &full, path, cluster, log);
            }
            None => log.refuse(at, "names no volume of the pod"),
        }
    }
    for volume in &volumes {
        let name = volume.node.text_at(&["name"]);
        if !name.is_some_and(|name| used.contains(name)) {
            log.note(volume, "is not used by the container that is run");
        }
    }
}

/// Takes one volume at one path, or says why not. The verdict is about the volume.
fn take_volume(
    volume: &Field<'_>,
    sub: &str,
    path: &str,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) {
    let path = path.trim_end_matches('/');
    let kinds = volume.entries(log);
    let Some((kind, source)) = kinds.iter().find(|(key, _)| *key != "name") else {
        log.refuse(volume, "has no source");
        return;
    };
    match *kind {
        "emptyDir" if path == "/dev/shm" => log.note(volume, "is the node's own /dev/shm"),
        "emptyDir" => log.warn(
            volume,
            format!(
                "is an empty directory there; here {path} is the node's own, and must be there"
            ),
        ),
        "hostPath" => {
            let host = source.node.text_at(&["path"]).unwrap_or_default();
            let host = format!("{}{sub}", host.trim_end_matches('/'));
            match host == path {
                true => log.note(volume, "is the node's own path"),
                false => log.refuse(
                    volume,
                    format!("is {host} of the node, but the job looks for it at {path}; make {path} a link on the nodes and drop the mount"),
                ),
            }
        }
        "persistentVolumeClaim" => {
            let claim = source.node.text_at(&["claimName"]).unwrap_or_default();
            mapped(volume, claim, sub, path, cluster, log);
        }
        "nfs" => {
            let server = source.node.text_at(&["server"]).unwrap_or_default();
            let exported = source.node.text_at(&["path"]).unwrap_or_default();
            mapped(
                volume,
                &format!("{server}:{exported}"),
                sub,
                path,
                cluster,
                log,
            );
        }
        "configMap" => {
            let name = source.node.text_at(&["name"]).unwrap_or_default();
            mapped(volume, name, sub, path, cluster, log);
        }
        "secret" => {
            let name = source.node.text_at(&["secretName"]).unwrap_or_default();
            mapped(volume, name, sub, path, cluster, log);
        }
        other => {
            let name = volume.node.text_at(&["name"]).unwrap_or_default();
            match cluster.site.claims.contains_key(name) {
                true => mapped(volume, name, sub, path, cluster, log),
                false => log.refuse(
                    volume,
                    format!("is {other}, which is in the cluster; say where the nodes have it with `claims: {{{name}: PATH}}` in the site map"),
                ),
            }
        }
    }
}

/// A volume that the site map may know.
fn mapped(
    volume: &Field<'_>,
    claim: &str,
    sub: &str,
    path: &str,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) {
    match cluster.site.claims.get(claim) {
        Some(there) if format!("{}{sub}", there.trim_end_matches('/')) == path => {
            log.note(volume, format!("{claim} is {path} on the nodes"));
        }
        Some(there) => log.refuse(
            volume,
            format!("{claim} is {}{sub} on the nodes, but the job looks for it at {path}; Muster mounts nothing", there.trim_end_matches('/')),
        ),
        None => log.refuse(
            volume,
            format!("{claim} is data in the cluster; say where the nodes have it with `claims: {{{claim}: PATH}}` in the site map"),
        ),
    }
}
