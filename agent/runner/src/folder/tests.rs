use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use super::*;

/// More than any test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that a job can write, beside a secret that it cannot read.
struct Site {
    site: tempfile::TempDir,
    folder: Folder,
}

impl Site {
    fn new() -> Self {
        let site = tempfile::tempdir().unwrap();
        fs::write(site.path().join("secret"), "token").unwrap();
        fs::create_dir_all(site.path().join("volume/runs/j-g1/logs")).unwrap();
        let folder = Folder::of_run(&site.path().join("volume/runs/j-g1")).unwrap();
        Self { site, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.path().join("volume/runs/j-g1").join(name)
    }

    fn secret(&self) -> PathBuf {
        self.site.path().join("secret")
    }

    /// Puts each thing that is no file in the place of `name`, and shows it to `look`.
    fn with_strangers(&self, name: &str, mut look: impl FnMut(&str)) {
        let path = self.path(name);
        symlink(self.secret(), &path).unwrap();
        look("a link");
        fs::remove_file(&path).unwrap();
        symlink("/no/such", &path).unwrap();
        look("a link that leads nowhere");
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        look("a FIFO");
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        look("a socket");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        look("a folder");
        fs::remove_dir(&path).unwrap();
    }
}

#[test]
fn what_is_no_file_is_neither_read_nor_written_nor_waited_for() {
    let site = Site::new();
    site.with_strangers("x", |what| {
        let outcomes = [
            site.folder.open("x").map(drop),
            site.folder.read("x", 100).map(drop),
            site.folder.append("x").map(drop),
            site.folder.lock("x").map(drop),
        ];
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}: {error}");
        }
        assert!(site.folder.has("x"), "{what}");
    });
    assert_eq!(fs::read(site.secret()).unwrap(), b"token");
    assert!(!site.folder.has("x"));
    let none = site.folder.read("x", 100).unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::NotFound);
}

#[test]
fn no_folder_on_the_way_is_a_link() {
    let site = Site::new();
    let elsewhere = site.site.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("j-g1/logs")).unwrap();
    fs::write(elsewhere.join("j-g1/logs/rank-0.log"), "token").unwrap();
    let (runs, run) = (site.site.path().join("volume/runs"), site.path(""));
    fs::remove_dir_all(site.path("logs")).unwrap();
    symlink(elsewhere.join("j-g1/logs"), site.path("logs")).unwrap();
    let error = site.folder.below("logs").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(
        error.to_string().starts_with("logs is no folder"),
        "{error}"
    );
    fs::remove_dir_all(&run).unwrap();
    symlink(elsewhere.join("j-g1"), runs.join("j-g1")).unwrap();
    Folder::of_run(&runs.join("j-g1")).unwrap_err();
    fs::remove_dir_all(&runs).unwrap();
    symlink(&elsewhere, &runs).unwrap();
    Folder::of_run(&runs.join("j-g1")).unwrap_err();
    // The operator's own link is his word.
    fs::remove_file(&runs).unwrap();
    fs::rename(&elsewhere, &runs).unwrap();
    symlink(
        site.site.path().join("volume"),
        site.site.path().join("link"),
    )
    .unwrap();
    let run = Folder::of_run(&site.site.path().join("link/runs/j-g1")).unwrap();
    let log = run.below("logs").unwrap().read("rank-0.log", 100);
    assert_eq!(log.unwrap(), b"token");
}

#[test]
fn a_name_leads_nowhere_else() {
    let site = Site::new();
    for name in ["", ".", "..", "logs/x", "/", "/etc/passwd", "../x", "x/"] {
        let error = site.folder.open(name).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        let error = site.folder.replace(name, b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        assert!(!site.folder.has(name));
    }
    for path in ["..", "logs/..", "/", "./logs"] {
        site.folder.below(path).unwrap_err();
    }
}

#[test]
fn a_file_is_read_up_to_its_bound() {
    let site = Site::new();
    fs::write(site.path("x"), "12345").unwrap();
    assert_eq!(site.folder.read("x", 5).unwrap(), b"12345");
    let error = site.folder.read("x", 4).unwrap_err();
    assert_eq!(error.to_string(), "has more than 4 bytes");
    // A file of 100 GB that takes nothing on the disk.
    let huge = File::create(site.path("x")).unwrap();
    huge.set_len(100 << 30).unwrap();
    let error = site.folder.read("x", 4_096).unwrap_err();
    assert_eq!(error.to_string(), "has more than 4096 bytes");
}

#[test]
fn a_file_is_replaced_and_nothing_else_is() {
    let site = Site::new();
    site.folder.replace("x", b"one").unwrap();
    site.folder.replace("x", b"two").unwrap();
    let mode = fs::metadata(site.path("x")).unwrap().permissions().mode();
    assert_eq!(
        (fs::read(site.path("x")).unwrap(), mode & 0o777),
        (b"two".to_vec(), 0o600)
    );
    fs::remove_file(site.path("x")).unwrap();
    site.with_strangers("x", |what| {
        if what == "a folder" {
            site.folder.replace("x", b"new").unwrap_err();
            return;
        }
        site.folder.replace("x", b"new").unwrap();
        assert_eq!(fs::read(site.path("x")).unwrap(), b"new", "{what}");
    });
    // The name that earlier versions wrote first.
    for name in ["x.tmp", ".x.tmp"] {
        symlink(site.secret(), site.path(name)).unwrap();
    }
    site.folder.replace("x", b"new").unwrap();
    assert_eq!(fs::read(site.secret()).unwrap(), b"token");
    let mut names = site.folder.names(100).unwrap();
    names.sort();
    assert_eq!(names, [".x.tmp", "logs", "x", "x.tmp"], "nothing is left");
    let error = site.folder.names(3).unwrap_err();
    assert_eq!(error.to_string(), "has more than 3 entries");
    site.folder.clear(&["x"]).unwrap();
    assert_eq!(site.folder.names(100).unwrap(), ["x"]);
    assert_eq!(fs::read(site.secret()).unwrap(), b"token");
}

#[test]
fn a_socket_is_reached_through_no_link() {
    let site = Site::new();
    let outside = UnixListener::bind(site.site.path().join("out.sock")).unwrap();
    outside.set_nonblocking(true).unwrap();
    symlink(site.site.path().join("out.sock"), site.path("control.sock")).unwrap();
    let error = site.folder.connect("control.sock", PATIENCE).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(
        outside.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    fs::remove_file(site.path("control.sock")).unwrap();
    let listener = UnixListener::bind(site.path("control.sock")).unwrap();
    let mut ours = site.folder.connect("control.sock", PATIENCE).unwrap();
    ours.write_all(b"x").unwrap();
    listener.accept().unwrap().0.read_exact(&mut [0]).unwrap();
    fs::remove_file(site.path("control.sock")).unwrap();
    fs::write(site.path("control.sock"), "").unwrap();
    site.folder.connect("control.sock", PATIENCE).unwrap_err();
}

#[test]
fn all_that_a_job_leaves_is_removed_and_what_its_links_lead_to_stays() {
    let site = Site::new();
    let outside = site.site.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    symlink(&outside, site.path("link")).unwrap();
    symlink(&outside, site.path("logs/link")).unwrap();
    rustix::fs::mkfifoat(CWD, site.path("fifo"), Mode::RWXU).unwrap();
    fs::create_dir_all(site.path("closed/deeper")).unwrap();
    fs::write(site.path("closed/deeper/x"), "").unwrap();
    for folder in ["closed/deeper", "closed"] {
        fs::set_permissions(site.path(folder), fs::Permissions::from_mode(0o000)).unwrap();
    }
    // Deeper than a path can name, than a stack can hold and than files may be open.
    let mut at = site.folder.make("deep").unwrap();
    for _ in 0..2_000 {
        at = at.make("d").unwrap();
    }
    at.replace_unsynced("x", b"").unwrap();
    let runs = site.site.path().join("volume/runs");
    let run = runs.join("j-g1");
    Folder::remove_run(&run).unwrap();
    assert_eq!(fs::read_dir(&runs).unwrap().count(), 0);
    Folder::remove_run(&run).unwrap();
    symlink(&outside, &run).unwrap();
    Folder::remove_run(&run).unwrap();
    fs::remove_dir(&runs).unwrap();
    Folder::remove_run(&run).unwrap();
    symlink(site.site.path(), &runs).unwrap();
    Folder::remove_run(&runs.join("outside")).unwrap_err();
    Folder::make_run(&runs.join("made")).unwrap_err();
    assert!(outside.join("kept").exists() && !site.site.path().join("made").exists());
}

#[test]
fn a_named_file_may_be_a_link_and_is_never_waited_for() {
    let site = Site::new();
    symlink(site.secret(), site.path("link")).unwrap();
    assert_eq!(read_named(&site.path("link"), 5).unwrap(), b"token");
    assert!(read_named(&site.path("link"), 4).is_err());
    rustix::fs::mkfifoat(CWD, site.path("fifo"), Mode::RWXU).unwrap();
    for path in [site.path("fifo"), site.path(""), "/dev/zero".into()] {
        let error = read_named(&path, 100).unwrap_err();
        assert_eq!(error.to_string(), "is not a regular file");
    }
}

/// A user that no machine has. Only root can give something to him.
const USER: (u32, u32) = (70_007, 70_008);

/// Whether this test is root. It says so loudly if not, since what follows is then not tested.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("NOT TESTED: only root can give a folder away");
    }
    root
}

fn owner(path: &Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let about = fs::symlink_metadata(path).unwrap();
    (about.uid(), about.gid())
}

#[test]
fn what_root_puts_into_a_given_folder_is_its_users() {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let dir = site.path("");
    fs::remove_dir(dir.join("logs")).unwrap();
    Folder::of_run(&dir)
        .unwrap()
        .replace("hold.json", b"{}")
        .unwrap();
    assert_eq!(owner(&dir.join("hold.json")), (0, 0));
    Folder::give(&dir, USER.0, USER.1).unwrap();
    Folder::give(&dir, USER.0, USER.1).unwrap();
    let folder = Folder::of_run(&dir).unwrap();
    assert_eq!(folder.owner(), Some(USER));
    folder.replace_unsynced("preload.txt", b"torch").unwrap();
    folder.make("sub/below").unwrap();
    for name in ["", "hold.json", "preload.txt", "sub", "sub/below"] {
        assert_eq!(owner(&dir.join(name)), USER, "{name:?}");
    }
    assert_eq!(folder.read("hold.json", 10).unwrap(), b"{}");
    let other = Folder::give(&dir, USER.0 + 1, USER.1).unwrap_err();
    assert_eq!(other.kind(), io::ErrorKind::InvalidData, "it is given once");
}

#[test]
fn root_opens_nothing_in_a_given_folder_that_is_not_its_users() {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let dir = site.path("");
    fs::remove_dir(dir.join("logs")).unwrap();
    Folder::give(&dir, USER.0, USER.1).unwrap();
    // Where the kernel does not protect hard links, a user can make these.
    fs::hard_link(site.secret(), dir.join("rank-0.log")).unwrap();
    let other = site.site.path().join("other.sock");
    let _listener = UnixListener::bind(&other).unwrap();
    fs::hard_link(&other, dir.join("control.sock")).unwrap();
    let folder = Folder::of_run(&dir).unwrap();
    for refused in [
        folder.open("rank-0.log").map(drop),
        folder.read("rank-0.log", 100).map(drop),
        folder.connect("control.sock", PATIENCE).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    // His own is read as ever, by whomever it was made.
    folder.replace_unsynced("rank-1.log", b"step 1").unwrap();
    assert_eq!(folder.read("rank-1.log", 100).unwrap(), b"step 1");
}

#[test]
fn only_what_the_giver_has_made_is_given() {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let dir = site.path("");
    symlink(site.secret(), dir.join("hold.json")).unwrap();
    assert!(Folder::give(&dir, USER.0, USER.1).is_err());
    assert_eq!((owner(&site.secret()), owner(&dir)), ((0, 0), (0, 0)));
    let link = site.site.path().join("volume/runs/link");
    symlink(&dir, &link).unwrap();
    assert!(Folder::give(&link, USER.0, USER.1).is_err());
}
