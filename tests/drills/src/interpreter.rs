//! An interpreter with a test's packages: a virtual environment whose `site-packages` links to each
//! package of the interpreter under test, as some installers do it. The test's own packages are
//! beside these links.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::python;

/// Prints the program of the base interpreter, its version, and the folders of its packages, one a
/// line.
const PLACES: &str = "import site, sys; print(sys._base_executable, '%d.%d' % sys.version_info[:2], *site.getsitepackages(), sep='\\n')";

/// Makes the environment in `home`, which must not exist yet, and returns its program. `packages`: a
/// folder of modules that are found first.
pub fn with_packages(home: &Path, packages: &Path) -> PathBuf {
    let output = Command::new(python())
        .args(["-c", PLACES])
        .output()
        .expect("the interpreter can be executed");
    let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let mut lines = text.lines();
    let (base, version) = (
        lines.next().expect("it names its base"),
        lines.next().expect("it names its version"),
    );
    let site = home.join(format!("lib/python{version}/site-packages"));
    let made = "a new folder takes links";
    fs::create_dir_all(&site).expect(made);
    for place in std::iter::once(packages).chain(lines.map(Path::new)) {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let link = site.join(entry.file_name());
            if !link.exists() {
                symlink(entry.path(), link).expect(made);
            }
        }
    }
    let (folder, program) = (
        Path::new(base).parent().expect("a program is in a folder"),
        home.join("bin/python"),
    );
    fs::write(
        home.join("pyvenv.cfg"),
        format!(
            "home = {}\ninclude-system-site-packages = false\n",
            folder.display()
        ),
    )
    .expect(made);
    fs::create_dir(home.join("bin")).expect(made);
    symlink(base, &program).expect(made);
    program
}
