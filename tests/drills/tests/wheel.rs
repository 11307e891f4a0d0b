//! The packages that users install. Made twice they have the same bytes, the wheel says which glibc its programs need, and what it installs
//! runs a job on this machine, with nothing else of this repository.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use muster_drills::{Cluster, programs, python};

const SCRIPT: &str = "\
import torch, torch.distributed as dist
dist.init_process_group('gloo')
one = torch.ones(1)
dist.all_reduce(one)
print('sum', int(one.item()), flush=True)
dist.destroy_process_group()
";

fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{error}");
    out
}

/// The packages of the programs that are tested, in a folder.
fn packages(out: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    ran(Command::new(root.join("tools/dist"))
        .arg(out)
        .arg("--programs")
        .arg(programs()));
    fs::read_to_string(out.join("SHA256SUMS")).unwrap()
}

fn only(folder: &Path, end: &str) -> PathBuf {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut found: Vec<PathBuf> = files
        .filter(|file| file.to_string_lossy().ends_with(end))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// The newest symbol of glibc that a program needs, by its own table.
fn glibc(program: &Path) -> (u32, u32) {
    let table = ran(Command::new("readelf")
        .args(["--wide", "--version-info"])
        .arg(program));
    let needs = table.split("Name: GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split_whitespace().next()?;
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    needs.max().unwrap_or_default()
}

#[test]
fn a_job_runs_from_the_wheel_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sums = packages(&at("once"));
    assert_eq!(
        sums,
        packages(&at("twice")),
        "the same input gives the same bytes"
    );
    let wheel = only(&at("once"), ".whl");

    let prefix = at("prefix");
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        "--prefix",
    ];
    ran(Command::new(python()).args(pip).arg(&prefix).arg(&wheel));
    let bin = prefix.join("bin");
    let needed =
        ["muster", "muster-agent", "muster-coordinator"].map(|name| glibc(&bin.join(name)));
    let (major, minor) = needed.into_iter().max().unwrap().max((2, 17));
    let name = wheel.file_name().unwrap().to_string_lossy().into_owned();
    assert!(
        name.contains(&format!("-manylinux_{major}_{minor}_")),
        "{name}"
    );
    assert_eq!(
        glibc(&bin.join("muster-runner")),
        (0, 0),
        "the runner is static"
    );
    for page in [
        "share/man/man1/muster-run.1",
        "share/doc/muster/NOTICES",
        "share/doc/muster/sbom.cdx.json",
        "share/zsh/site-functions/_muster",
    ] {
        assert!(fs::metadata(prefix.join(page)).unwrap().len() > 0, "{page}");
    }

    let script = at("train.py");
    fs::write(&script, SCRIPT).unwrap();
    let cluster = Cluster::up_of(bin, 2, &[], &[]);
    let script = script.to_string_lossy().into_owned();
    cluster.muster([
        "run",
        "--name",
        "first",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--python",
        &python(),
        "--wait",
        &script,
    ]);
    let logs = cluster.muster(["logs", "first"]);
    assert!(logs.contains("sum 2"), "{logs}");
}

#[test]
fn the_tarball_holds_the_same_programs_below_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    packages(folder.path());
    let tarball = only(folder.path(), ".tar.gz");
    let listed = ran(Command::new("tar").arg("-tzvf").arg(&tarball));
    let lines: Vec<&str> = listed.lines().collect();
    for (mode, path) in [
        ("-rwxr-xr-x", "bin/muster"),
        ("-rwxr-xr-x", "bin/muster-agent"),
        ("-rwxr-xr-x", "bin/muster-coordinator"),
        ("-rwxr-xr-x", "bin/muster-runner"),
        ("-rw-r--r--", "share/muster/systemd/muster-agent.service"),
        ("-rw-r--r--", "README.md"),
    ] {
        let is_it = |line: &&str| {
            line.starts_with(&format!("{mode} root/root ")) && line.ends_with(&format!("/{path}"))
        };
        assert!(lines.iter().any(is_it), "{path}: {listed}");
    }
    let roots = lines
        .iter()
        .filter_map(|line| line.split_whitespace().last()?.split('/').next());
    assert!(
        roots.clone().all(|root| root.starts_with("muster-")),
        "{listed}"
    );
    let unpacked = folder.path().join("usr");
    fs::create_dir(&unpacked).unwrap();
    ran(Command::new("tar")
        .args(["--strip-components=1", "-xzf"])
        .arg(&tarball)
        .arg("-C")
        .arg(&unpacked));
    let version = ran(Command::new(unpacked.join("bin/muster")).args(["version", "-o", "json"]));
    assert!(version.contains("0."), "{version}");
}

/// Needs dpkg-deb, as the package itself does: on a machine without it the packages hold no .deb, and tools/dist says so.
#[test]
fn the_deb_has_the_paths_of_a_system_and_the_list_of_what_it_is_made_of() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("not run: dpkg-deb is not on PATH (package dpkg)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    packages(folder.path());
    let deb = only(folder.path(), ".deb");
    let root = folder.path().join("root");
    ran(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&deb)
        .arg(&root));
    for daemon in ["muster-agent", "muster-coordinator"] {
        let at = |place: &str, end: &str| {
            let file = root.join(format!("usr/lib/{place}/{daemon}.{end}"));
            fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        };
        let unit = at("systemd/system", "service");
        let program = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/"))
            .unwrap();
        assert_eq!(program, format!("usr/bin/{daemon}"));
        assert!(root.join(program).is_file(), "{program}");
        let user = unit
            .lines()
            .find_map(|line| line.strip_prefix("User="))
            .unwrap();
        let users = at("sysusers.d", "conf");
        assert!(users.contains(&format!("\nu {user} - ")), "{users}");
    }
    // An upgrade and a removal end daemons. What would end workers, too, is the unit's KillMode.
    let agent =
        fs::read_to_string(root.join("usr/lib/systemd/system/muster-agent.service")).unwrap();
    assert!(agent.lines().any(|line| line == "KillMode=process"));

    let made_of = fs::read(root.join("usr/share/doc/muster-train/sbom.cdx.json")).unwrap();
    let made_of: serde_json::Value = serde_json::from_slice(&made_of).unwrap();
    let components = made_of["components"].as_array().unwrap();
    let names: Vec<&str> = components
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    // The runner, the daemons and the command line; and what only tests or other systems need is not there.
    for (name, is_there) in [
        ("rustix", true),
        ("tonic", true),
        ("clap", true),
        ("tempfile", false),
        ("proptest", false),
        ("windows-sys", false),
    ] {
        assert_eq!(names.contains(&name), is_there, "{name}: {names:?}");
    }
    let sum = |it: &serde_json::Value| it["hashes"][0]["content"].as_str().map(str::len);
    assert!(
        components.iter().all(|it| sum(it) == Some(64)),
        "a crate has no checksum"
    );
}
