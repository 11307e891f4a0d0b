//! The directory that stands for a machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{fault, hardware::Hardware, shapes};

pub const SYSROOT: &str = "sysroot";
pub const LIBRARY: &str = "libnvidia-ml.so.1";
/// The hardware as it was made. A mended part returns to this.
pub const WELL: &str = "hardware.well.json";
/// The name of the library as cargo builds it.
pub const BUILT: &str = "libmuster_fake_nvml.so";

/// Makes the machine `scenario` in `dir`. A scenario is the name of a shape, with the faults that
/// it has from the start, such as `8xh100,gpu3:lost`. `seed` makes its serial numbers unique.
/// Without `library` the machine has no driver.
pub fn make(dir: &Path, scenario: &str, seed: &str, library: Option<&Path>) -> anyhow::Result<()> {
    let mut parts = scenario.split(',');
    let name = parts.next().unwrap_or_default();
    let shape = shapes::named(name).with_context(|| {
        format!(
            "{name:?} is no scenario; there are {}",
            shapes::names().join(", ")
        )
    })?;
    if dir.exists() {
        fs::remove_dir_all(dir)
            .with_context(|| format!("remove the machine in {}", dir.display()))?;
    }
    let root = dir.join(SYSROOT);
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let hardware = shape
        .build(&root, seed)
        .with_context(|| format!("write {}", root.display()))?;
    hardware.write(dir)?;
    fs::copy(dir.join(crate::hardware::FILE), dir.join(WELL))?;
    if let Some(library) = library.filter(|_| shape.driver) {
        // Each machine has a copy of the library, because the loader gives one instance per file.
        let mut code = fs::read(library).with_context(|| format!("read {}", library.display()))?;
        shape
            .missing
            .iter()
            .for_each(|symbol| forget(&mut code, symbol));
        fs::write(dir.join(LIBRARY), code)?;
    }
    for fault in parts {
        let (target, fault) = fault
            .split_once(':')
            .with_context(|| format!("{fault:?} is not TARGET:FAULT"))?;
        fault::inject(dir, target, fault)?;
    }
    Ok(())
}

/// Removes a symbol from the library, because an old driver lacks it. The loader does not find it
/// under its changed name.
fn forget(code: &mut [u8], symbol: &str) {
    let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
    for at in 0..code.len().saturating_sub(name.len()) {
        if code[at..at + name.len()] == name[..] {
            code[at + 1] = b'x';
        }
    }
}

/// The built library: beside the running program, or in the folders where cargo puts it.
pub fn built_library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("own program")?;
    let folders = program
        .ancestors()
        .skip(1)
        .take(3)
        .flat_map(|folder| [folder.to_owned(), folder.join("deps")]);
    let found = folders
        .map(|folder| folder.join(BUILT))
        .find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "{BUILT} is neither beside {} nor in its build folders",
            program.display()
        )
    })
}

pub fn read(dir: &Path) -> anyhow::Result<Hardware> {
    Hardware::read(dir).with_context(|| {
        format!(
            "{} is no machine made by `muster-hardware make`",
            dir.display()
        )
    })
}
