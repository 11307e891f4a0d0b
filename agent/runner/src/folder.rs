//! Files in a folder that jobs can write. A job can put anything there in the place of a file: a link to
//! what only the agent may read, a FIFO whose other end nobody opens, a file without end, a folder.
//!
//! So every name below such a folder goes through a [`Folder`], which is held open. No link below it is
//! followed, nothing waits for the other end of a pipe, only regular files are read, and each up to a
//! bound. What is written appears as a whole, under a name that did not exist before.
//!
//! A path that the operator gives is followed wherever it leads; that is where a folder begins
//! ([`Folder::trusted`]). Hard links need no check: they do not cross mounts, so whoever can make one in
//! this folder has the file in a place that is his already. That is not so for root in a folder that it has
//! given to a user ([`Folder::give`]): there it opens only what is that user's, and what it writes becomes
//! his.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

mod chance;
mod removal;

use chance::chance;

/// Nobody can take this many names by chance or by guessing: each has 64 random bits.
const NAMES_TRIED: usize = 4;

/// How many files a folder has that is given away: those that its agent has just written.
const GIVEN_MAX: usize = 64;

/// A folder that is held open. It stays the same folder wherever its path leads meanwhile.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    /// This process is root, and the folder is this user's.
    theirs: Option<(Uid, Gid)>,
}

impl Folder {
    /// A folder whose path the operator has given. Its links are followed.
    pub fn trusted(path: &Path) -> io::Result<Self> {
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { fd, theirs: None })
    }

    /// The directory of a run, `ROOT/runs/NAME`. `ROOT` is the operator's. Workers can replace the two
    /// folders below it. A path of one name, as `.` in a runner that is there, is taken as it is.
    pub fn of_run(dir: &Path) -> io::Result<Self> {
        match of_operator(dir) {
            Some((root, below)) => Self::trusted(root)?.below(below),
            None => Self::trusted(dir),
        }
    }

    /// The same, made if it is not there, for this user alone.
    pub fn make_run(dir: &Path) -> io::Result<Self> {
        match of_operator(dir) {
            Some((root, below)) => Self::trusted(root)?.make(below),
            None => Self::trusted(dir),
        }
    }

    /// Removes the directory of a run with all that is below it. It is no error if there is none.
    pub fn remove_run(dir: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let parent = match of_operator(dir) {
            Some((root, _)) => parent
                .strip_prefix(root)
                .map(|below| Self::trusted(root)?.below(below))
                .expect("a parent is below what it is a part of"),
            None => Self::trusted(parent),
        };
        match parent {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            parent => parent?.remove(name),
        }
    }

    /// A folder below this one, with no link on the way.
    ///
    /// # Errors
    /// `InvalidData`: a link, or something else that is no folder, is in the place of one.
    pub fn below(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (mut fd, mut theirs) = (self.fd.try_clone()?, self.theirs);
        for part in path.as_ref().components() {
            let Component::Normal(name) = part else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            fd = match rustix::fs::openat(&fd, name, flags, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let name = name.to_string_lossy();
                    return Err(stranger(&format!(
                        "{name} is no folder, or a link to one, and no link is followed here"
                    )));
                }
                folder => folder?,
            };
            theirs = foreign(&fd)?;
        }
        Ok(Self { fd, theirs })
    }

    /// A folder below this one, made if it is not there, for this user alone.
    pub fn make(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let mut folder = self.below("")?;
        for part in path.as_ref().components() {
            let made = match rustix::fs::mkdirat(&folder.fd, part.as_os_str(), Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(e) => return Err(e.into()),
            };
            let above = folder.theirs;
            folder = folder.below(part.as_os_str())?;
            if let Some(user) = above.filter(|_| made && folder.theirs.is_none()) {
                own(&folder.fd, user)?;
                folder.theirs = Some(user);
            }
        }
        Ok(folder)
    }

    /// Gives the directory of a run, or another that this process has made, with the files in it to a user.
    /// Only root can. It is no error if it is that user's already.
    ///
    /// # Errors
    /// `InvalidData`: it is somebody else's, or not as this process has made it.
    pub fn give(dir: &Path, uid: u32, gid: u32) -> io::Result<()> {
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = Self::trusted(parent)?.below(name)?;
        let user = (Uid::from_raw(uid), Gid::from_raw(gid));
        match folder.theirs {
            Some((owner, _)) if owner == user.0 => return Ok(()),
            Some(_) => return Err(stranger("it belongs to another user")),
            None => {}
        }
        for name in folder.names(GIVEN_MAX)? {
            own(&folder.open(name)?, user)?;
        }
        // The folder comes last: until now nobody else could put anything into it.
        own(&folder.fd, user)
    }

    /// Whose it is, if this process is root and the folder is another user's: the numbers of user and group.
    pub fn owner(&self) -> Option<(u32, u32)> {
        self.theirs.map(|(uid, gid)| (uid.as_raw(), gid.as_raw()))
    }

    /// Opens a regular file for reading. It never waits.
    ///
    /// # Errors
    /// `InvalidData`: something else is in its place.
    pub fn open(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.open_as(name.as_ref(), OFlags::RDONLY)
    }

    /// Opens a regular file for appending, which is made if it is not there.
    pub fn append(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        self.open_as(name.as_ref(), flags)
    }

    /// Opens a regular file for a lock, which is made if it is not there.
    pub fn lock(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.open_as(name.as_ref(), OFlags::RDWR | OFlags::CREATE)
    }

    fn open_as(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::openat(&self.fd, one(name)?, flags | careful, mode) {
            Ok(fd) => {
                self.is_theirs(&fd)?;
                regular(File::from(fd))
            }
            // In this order: a link, a FIFO that nobody reads or a socket, a folder.
            Err(Errno::LOOP) => Err(stranger("it is a link")),
            Err(Errno::NXIO | Errno::ISDIR) => Err(stranger(NO_FILE)),
            Err(e) => Err(e.into()),
        }
    }

    /// In a folder that root has given to a user, only what is his is opened. He may have linked to what only
    /// root can read.
    fn is_theirs(&self, fd: impl AsFd) -> io::Result<()> {
        let Some((uid, _)) = self.theirs else {
            return Ok(());
        };
        match rustix::fs::fstat(fd)?.st_uid == uid.as_raw() {
            true => Ok(()),
            false => Err(stranger("it belongs to another user")),
        }
    }

    /// What is in a file of at most so many bytes.
    ///
    /// # Errors
    /// `InvalidData`: it is longer, or something else is in its place.
    pub fn read(&self, name: impl AsRef<OsStr>, most: u64) -> io::Result<Vec<u8>> {
        whole(self.open(name)?, most)
    }

    /// Replaces a file, for this user alone. A reader finds the old content or the new one, also after a
    /// crash. It is on disk when this returns.
    pub fn replace(&self, name: impl AsRef<OsStr>, content: &[u8]) -> io::Result<()> {
        self.put(name.as_ref(), content, Mode::RUSR | Mode::WUSR, true)?;
        let own = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", own, Mode::empty())?;
        Ok(rustix::fs::fsync(fd)?)
    }

    /// The same for what is of no use after a crash of the machine.
    pub fn replace_unsynced(&self, name: impl AsRef<OsStr>, content: &[u8]) -> io::Result<()> {
        self.put(name.as_ref(), content, Mode::RUSR | Mode::WUSR, false)
    }

    /// The same for a program.
    pub fn replace_program(&self, name: impl AsRef<OsStr>, content: &[u8]) -> io::Result<()> {
        self.put(name.as_ref(), content, Mode::RWXU, false)
    }

    fn put(&self, name: &OsStr, content: &[u8], mode: Mode, synced: bool) -> io::Result<()> {
        let name = one(name)?;
        let (temporary, mut file) = self.fresh(name, mode)?;
        let written = file.write_all(content).and_then(|()| match synced {
            true => file.sync_all(),
            false => Ok(()),
        });
        let named =
            written.and_then(|()| Ok(rustix::fs::renameat(&self.fd, &temporary, &self.fd, name)?));
        if named.is_err() {
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        named
    }

    /// A file that did not exist before, under a name that nobody could know.
    fn fresh(&self, name: &OsStr, mode: Mode) -> io::Result<(OsString, File)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let careful = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut taken = Errno::EXIST;
        for _ in 0..NAMES_TRIED {
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{:016x}.tmp", chance()));
            match rustix::fs::openat(&self.fd, &temporary, flags | careful, mode) {
                Ok(fd) => {
                    if let Some(user) = self.theirs {
                        own(&fd, user)?;
                    }
                    return Ok((temporary, File::from(fd)));
                }
                Err(Errno::EXIST) => taken = Errno::EXIST,
                Err(e) => return Err(e.into()),
            }
        }
        Err(taken.into())
    }

    /// Whether there is anything of this name, if only a link that leads nowhere.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        one(name.as_ref())
            .is_ok_and(|name| rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// What is known of a name without opening it. A link is not followed.
    pub fn about(&self, name: impl AsRef<OsStr>) -> io::Result<Metadata> {
        fs::symlink_metadata(self.handle().join(one(name.as_ref())?))
    }

    /// The names in it, in no order.
    ///
    /// # Errors
    /// `InvalidData`: there are more than `most`.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.handle())? {
            if names.len() == most {
                return Err(stranger(&format!("has more than {most} entries")));
            }
            names.push(entry?.file_name());
        }
        Ok(names)
    }

    /// Removes a file, or a folder with all that is below it. A link is removed, and what it leads to
    /// stays. It is no error if there is nothing.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        removal::remove(&self.fd, one(name.as_ref())?)
    }

    /// Removes all that is in it, except what has one of these names.
    pub fn clear(&self, kept: &[&str]) -> io::Result<()> {
        removal::clear(&self.fd, OsStr::new("."), kept)
    }

    /// Connects to a socket. A listener that has no room for one more connection gets this long.
    pub fn connect(&self, name: impl AsRef<OsStr>, patience: Duration) -> io::Result<UnixStream> {
        let ours = stream(SocketFlags::CLOEXEC)?;
        sockopt::set_socket_timeout(&ours, sockopt::Timeout::Send, Some(patience))?;
        self.connect_as(&ours, name.as_ref())?;
        sockopt::set_socket_timeout(&ours, sockopt::Timeout::Send, None)?;
        Ok(UnixStream::from(ours))
    }

    /// Connects to a socket without waiting, now or later.
    ///
    /// # Errors
    /// `WouldBlock`: the listener has no room for one more connection.
    pub fn connect_at_once(&self, name: impl AsRef<OsStr>) -> io::Result<UnixStream> {
        let ours = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        self.connect_as(&ours, name.as_ref())?;
        Ok(UnixStream::from(ours))
    }

    fn connect_as(&self, ours: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = rustix::fs::openat(&self.fd, one(name)?, flags, Mode::empty())?;
        self.is_theirs(&there)?;
        if kind(&there)? != FileType::Socket {
            return Err(stranger("it is no socket"));
        }
        // A path of any length would not fit into an address, and could lead elsewhere by now.
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", there.as_raw_fd()))?;
        Ok(rustix::net::connect(ours, &address)?)
    }

    /// A path to this very folder, for calls that take no descriptor. It is valid as long as this value.
    pub fn handle(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }
}

impl From<OwnedFd> for Folder {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, theirs: None }
    }
}

/// What is in a file that the operator or a user names, of at most so many bytes. Links are followed.
///
/// # Errors
/// `InvalidData`: it is longer, or no regular file.
pub fn read_named(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    whole(open_named(path)?, most)
}

/// Opens a regular file that the operator or a user names for reading. It never waits for the other end
/// of a pipe.
pub fn open_named(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path);
    match file {
        Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Err(stranger(NO_FILE)),
        file => regular(file?),
    }
}

fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// The part of a run's directory that the operator has chosen, and the two names below it.
fn of_operator(dir: &Path) -> Option<(&Path, &Path)> {
    let root = dir.ancestors().nth(2)?;
    Some((root, dir.strip_prefix(root).ok()?))
}

const NO_FILE: &str = "is not a regular file";

/// Something is in the place of a file that nobody of Muster has put there.
fn stranger(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn regular(file: File) -> io::Result<File> {
    match kind(&file)? {
        FileType::RegularFile => Ok(file),
        _ => Err(stranger(NO_FILE)),
    }
}

/// The owner of what root has open, if that is not root.
fn foreign(fd: &OwnedFd) -> io::Result<Option<(Uid, Gid)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let about = rustix::fs::fstat(fd)?;
    let owner = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
    Ok((!owner.0.is_root()).then_some(owner))
}

fn own(fd: impl AsFd, (uid, gid): (Uid, Gid)) -> io::Result<()> {
    // Also of a descriptor that only names what it stands for.
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::chownat(fd, "", Some(uid), Some(gid), flags)?)
}

fn kind(fd: impl AsFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

fn whole(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(most.saturating_add(1))
        .read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(stranger(&format!("has more than {most} bytes"))),
        false => Ok(content),
    }
}

/// A name of one part, which leads nowhere else.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(name),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(test)]
mod tests;
