use super::*;
use crate::spec::{JobDocument, Metadata, RoleDocument, SpecDocument};

fn job(spec: SpecDocument) -> Result<JobSpec, Vec<String>> {
    let document = JobDocument {
        api_version: crate::spec::API_VERSION.into(),
        kind: crate::spec::KIND.into(),
        metadata: Metadata {
            name: "job".into(),
            ..Metadata::default()
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            ..spec
        },
    };
    let checked = document.check().map(|(_, spec)| spec);
    checked.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn sizes(replicas: i64, min: i64, max: i64) -> SpecDocument {
    SpecDocument {
        replicas: Some(replicas),
        min_replicas: Some(min),
        max_replicas: Some(max),
        multiple_of: Some(4),
        ..SpecDocument::default()
    }
}

fn with_roles() -> SpecDocument {
    let role = |name: &str, max| RoleDocument {
        name: name.into(),
        max_replicas: Some(max),
        ..RoleDocument::default()
    };
    let workers = RoleDocument {
        replicas: Some(4),
        min_replicas: Some(2),
        multiple_of: Some(2),
        ..role("worker", 8)
    };
    SpecDocument {
        framework: Some("plain".into()),
        roles: vec![role("head", 1), workers],
        ..SpecDocument::default()
    }
}

#[test]
fn sizes_are_multiples_and_the_nearest_are_named() {
    let spec = job(sizes(8, 4, 12)).unwrap();
    assert_eq!(spec.multiple_of, Multiple::of(4));
    assert_eq!(
        job(sizes(6, 3, 14)).unwrap_err(),
        [
            "spec.replicas: is 6, must be a multiple of 4 (multipleOf): give 4 or 8",
            // 0 nodes are no job.
            "spec.minReplicas: is 3, must be a multiple of 4 (multipleOf): give 4",
            "spec.maxReplicas: is 14, must be a multiple of 4 (multipleOf): give 12 or 16",
        ]
    );
    // What is left out follows, and is not told twice.
    let alone = SpecDocument {
        replicas: Some(6),
        multiple_of: Some(4),
        ..SpecDocument::default()
    };
    assert_eq!(job(alone).unwrap_err().len(), 1);
    for wrong in [0, -4, NODES_MAX + 1] {
        let wrong = SpecDocument {
            multiple_of: Some(wrong),
            ..sizes(8, 8, 8)
        };
        let told = job(wrong).unwrap_err().join(", ");
        assert!(told.starts_with("spec.multipleOf: is "), "{told}");
    }
}

#[test]
fn a_size_is_rounded_down_and_refused_with_its_neighbours() {
    let spec = job(sizes(8, 4, 12)).unwrap();
    assert_eq!(
        [3, 4, 7, 8, 11, 12].map(|size| spec.size_within(size)),
        [0, 4, 4, 8, 8, 12]
    );
    assert_eq!(spec.no_size(8), None);
    let told = spec.no_size(6).unwrap();
    assert_eq!(
        told,
        "is 6, must be a multiple of 4 (multipleOf): give 4 or 8"
    );
    // Neighbours beyond the job's own limits are no help.
    let told = spec.no_size(13).unwrap();
    assert_eq!(told, "is 13, must be a multiple of 4 (multipleOf): give 12");
    let any = job(SpecDocument::default()).unwrap();
    assert_eq!((any.size_within(7), any.no_size(7)), (7, None));
}

#[test]
fn a_role_has_a_multiple_of_its_own_beside_the_others() {
    let spec = job(with_roles()).unwrap();
    assert_eq!(
        [3, 4, 5, 9].map(|size| spec.size_within(size)),
        [3, 3, 5, 9]
    );
    let told = spec.no_size(4).unwrap();
    assert_eq!(
        told,
        "is 4, must be a multiple of 2 (multipleOf) beside the 1 of the other roles: give 3 or 5"
    );
    let mut odd = with_roles();
    odd.replicas = Some(6);
    let told = job(odd).unwrap_err();
    assert!(
        told[0].starts_with("spec.replicas: is 6, must be"),
        "{told:?}"
    );

    let mut odd = with_roles();
    odd.roles[1].min_replicas = Some(3);
    let told = job(odd).unwrap_err().join(", ");
    let wanted =
        "spec.roles[1].minReplicas: is 3, must be a multiple of 2 (multipleOf): give 2 or 4";
    assert!(told.contains(wanted), "{told}");

    let mut top = with_roles();
    top.multiple_of = Some(2);
    let told = job(top).unwrap_err().join(", ");
    assert!(
        told.contains("spec.multipleOf: is given beside roles"),
        "{told}"
    );
}

#[test]
fn a_job_of_an_older_coordinator_has_any_size() {
    let spec = job(SpecDocument::default()).unwrap();
    let json = serde_json::to_string(&spec).unwrap();
    assert!(!json.contains("multipleOf"), "{json}");
    assert_eq!(serde_json::from_str::<JobSpec>(&json).unwrap(), spec);
}
