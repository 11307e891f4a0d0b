use super::*;

fn wanted<'a>(runtime: Runtime, image: &'a str, mounts: &'a [Mount]) -> Wanted<'a> {
    Wanted {
        runtime,
        program: match runtime {
            Runtime::Podman => "/usr/bin/podman",
            Runtime::Apptainer => "/usr/bin/apptainer",
            Runtime::Enroot => "/usr/bin/enroot",
        },
        image,
        name: "muster-n1-u1",
        volume: "/s/containers/u1",
        runs: "/s/runs",
        work_dirs: &[],
        mounts,
        gpus: false,
        devices: &[],
    }
}

fn data() -> [Mount; 1] {
    [Mount::read("/data:/mnt/data:ro").unwrap()]
}

#[test]
fn podman_runs_the_image_with_the_hosts_namespaces_and_without_its_entrypoint() {
    let (mounts, work_dirs, devices) = (data(), ["/w".to_owned()], ["/dev/infiniband".to_owned()]);
    let made = commands(&Wanted {
        work_dirs: &work_dirs,
        gpus: true,
        devices: &devices,
        ..wanted(Runtime::Podman, "nvcr.io#nvidia/pytorch:25.01-py3", &mounts)
    })
    .unwrap();
    assert_eq!(
        made.start.join(" "),
        "/usr/bin/podman run --detach --rm --pull=missing --name=muster-n1-u1 --network=host --ipc=host --pid=host \
         --uts=host --user=0:0 --pids-limit=-1 --ulimit=host --security-opt=label=disable --no-healthcheck \
         --volume=/s/containers/u1:/s/containers/u1:rw,rslave --volume=/s/runs:/s/runs:rw,rslave \
         --volume=/w:/w:rw,rslave --volume=/data:/mnt/data:ro,rslave --device=nvidia.com/gpu=all \
         --device=/dev/infiniband --entrypoint=/s/containers/u1/muster-runner -- \
         nvcr.io/nvidia/pytorch:25.01-py3 pod --dir /s/containers/u1"
    );
    assert!(made.detaches && made.before.is_empty() && made.files.is_empty());
    assert_eq!(
        made.remove[0].join(" "),
        "/usr/bin/podman rm --force --ignore --time=0 muster-n1-u1"
    );
    let without = commands(&wanted(Runtime::Podman, "a", &[])).unwrap();
    let gpus = without.start.iter().any(|word| word.contains("nvidia"));
    assert!(!gpus, "{:?}", without.start);
}

#[test]
fn apptainer_executes_in_the_image_and_stays() {
    let mounts = data();
    let made = commands(&Wanted {
        gpus: true,
        ..wanted(
            Runtime::Apptainer,
            "docker.io/pytorch/pytorch:2.8.0",
            &mounts,
        )
    })
    .unwrap();
    assert_eq!(
        made.start.join(" "),
        "/usr/bin/apptainer exec --cleanenv --no-home --writable-tmpfs --bind=/s/containers/u1:/s/containers/u1:rw \
         --bind=/s/runs:/s/runs:rw --bind=/data:/mnt/data:ro --nv docker://docker.io/pytorch/pytorch:2.8.0 \
         /s/containers/u1/muster-runner pod --dir /s/containers/u1"
    );
    assert!(!made.detaches && made.remove.is_empty());
    let file = commands(&wanted(Runtime::Apptainer, "/shared/train.sif", &[])).unwrap();
    assert!(file.start.contains(&"/shared/train.sif".to_owned()));
    assert!(!file.start.contains(&"--nv".to_owned()));
}

#[test]
fn enroot_imports_and_creates_first_and_overrides_the_entrypoint() {
    let mounts = data();
    let image = "nvcr.io/nvidia/pytorch:25.01-py3";
    let made = commands(&wanted(Runtime::Enroot, image, &mounts)).unwrap();
    let before: Vec<String> = made.before.iter().map(|line| line.join(" ")).collect();
    assert_eq!(
        before,
        [
            "/usr/bin/enroot import --output /s/containers/u1/image.sqsh docker://nvcr.io#nvidia/pytorch:25.01-py3",
            "/usr/bin/enroot create --force --name muster-n1-u1 /s/containers/u1/image.sqsh"
        ]
    );
    assert_eq!(
        made.start.join(" "),
        "/usr/bin/enroot start --rw --rc /s/containers/u1/rc \
         --mount /s/containers/u1:/s/containers/u1:none:x-create=auto,rbind,rw \
         --mount /s/runs:/s/runs:none:x-create=auto,rbind,rw \
         --mount /data:/mnt/data:none:x-create=auto,rbind,ro --env NVIDIA_VISIBLE_DEVICES=void -- \
         muster-n1-u1 /s/containers/u1/muster-runner pod --dir /s/containers/u1"
    );
    assert_eq!(made.files, [("rc", "exec \"$@\"\n")]);
    assert_eq!(
        made.remove[0].join(" "),
        "/usr/bin/enroot remove --force muster-n1-u1"
    );
    let short = commands(&wanted(Runtime::Enroot, "pytorch/pytorch:2.8.0", &[])).unwrap();
    assert_eq!(short.before[0][4], "docker://pytorch/pytorch:2.8.0");
    let file = commands(&Wanted {
        gpus: true,
        ..wanted(Runtime::Enroot, "/shared/x.sqsh", &[])
    })
    .unwrap();
    assert_eq!(
        (file.before.len(), &*file.before[0][5]),
        (1, "/shared/x.sqsh")
    );
    assert!(
        file.start
            .contains(&"NVIDIA_VISIBLE_DEVICES=all".to_owned())
    );
}

#[test]
fn the_operators_mount_stands_where_a_member_starts_in_it() {
    let (mounts, work_dirs) = ([Mount::read("/nfs/w:/w").unwrap()], ["/w".to_owned()]);
    let made = commands(&Wanted {
        work_dirs: &work_dirs,
        ..wanted(Runtime::Podman, "a", &mounts)
    });
    let start = made.unwrap().start.join(" ");
    assert!(start.contains("--volume=/nfs/w:/w:rw") && !start.contains("--volume=/w:/w"));
}

#[test]
fn mounts_are_read_and_what_no_command_line_can_name_is_refused() {
    let same = Mount {
        from: "/data".into(),
        to: "/data".into(),
        read_only: false,
    };
    assert_eq!(Mount::read("/data"), Ok(same));
    for wrong in ["data", "/a:b", "/a:/b:rw", "/a:/b:ro:x", "/a b", "/a,b", ""] {
        assert!(Mount::read(wrong).is_err(), "{wrong:?}");
    }
    let odd = ["/w,x".to_owned()];
    let made = commands(&Wanted {
        work_dirs: &odd,
        ..wanted(Runtime::Podman, "a", &[])
    });
    assert!(made.unwrap_err().contains("/w,x"));
}

#[test]
fn directories_with_the_images_own_programs_are_not_covered() {
    for dir in ["/", "//", "/usr/local", "/opt", "/etc", "/./usr", "/proc/1"] {
        assert!(!is_mounted(dir), "{dir}");
    }
    for dir in [
        "/home/ann/src",
        "/shared",
        "/opt/train",
        "/tmp/x",
        "/workspace",
    ] {
        assert!(is_mounted(dir), "{dir}");
    }
}

#[test]
fn a_container_serves_every_generation_that_asks_for_no_more() {
    let asked = |dirs: &[&str], gpus| Asked {
        image: "a".into(),
        work_dirs: dirs.iter().map(|dir| (*dir).to_owned()).collect(),
        gpus,
    };
    let has = asked(&["/a", "/b"], true);
    assert!(has.serves(&asked(&["/a"], false)) && has.serves(&has));
    assert!(!has.serves(&asked(&["/c"], true)));
    assert!(!asked(&["/a"], false).serves(&asked(&["/a"], true)));
    let other = Asked {
        image: "b".into(),
        ..has.clone()
    };
    assert!(!has.serves(&other));
}

/// The words of podman 4.3 and of registries.
#[test]
fn an_image_that_is_not_there_is_the_jobs_doing() {
    let of_job = [
        "Error: initializing source docker://docker.io/library/no:1: reading manifest 1 in docker.io/library/no: manifest unknown: manifest unknown",
        "Error: short-name \"x\" did not resolve to an alias and no unqualified-search registries are defined",
    ];
    for said in of_job {
        assert_eq!(due_to(said), DueTo::Job, "{said}");
    }
    for said in [
        "Error: initializing source docker://quay.io/a/b:1: unauthorized: access to the requested resource is not authorized",
        "FATAL:   could not open image /x.sif: failed to retrieve path for /x.sif: no such file or directory",
    ] {
        assert_eq!(due_to(said), DueTo::Unknown, "{said}");
    }
    for said in [
        "Error: OCI runtime error: crun: mount `proc` to `proc`: Operation not permitted",
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "",
    ] {
        assert_eq!(due_to(said), DueTo::Node, "{said}");
    }
    assert_eq!(last_line("Trying to pull\nError: x\n\n"), "Error: x");
    assert_eq!(last_line(""), "");
}

#[test]
fn a_container_is_kept_a_while_after_its_job() {
    let second = |number: u64| Timestamp(number * 1_000_000);
    let containers = BTreeMap::from([
        (JobUid::from("here"), second(1)),
        (JobUid::from("left"), second(1)),
        (JobUid::from("later"), second(5)),
    ]);
    let here = BTreeSet::from([JobUid::from("here")]);
    assert_eq!(
        over(second(10), &containers, &here),
        (vec![], Some(second(11)))
    );
    assert_eq!(
        over(second(11), &containers, &here),
        (vec![JobUid::from("left")], Some(second(15)))
    );
}
