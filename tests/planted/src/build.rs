//! Copies core's source, puts each mistake of `mistakes.txt` into the copy, and fails if one does not
//! fit any more.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

mod mistakes;

use mistakes::Mistake;

const CORE: &str = "../../core/src";
const MISTAKES: &str = "mistakes.txt";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={CORE}");
    println!("cargo::rerun-if-changed={MISTAKES}");
    for wrong in make()? {
        println!("cargo::error={wrong}");
    }
    Ok(())
}

/// Makes the copy. Returns what is wrong with the list.
fn make() -> io::Result<Vec<String>> {
    let all = match mistakes::parse(&fs::read_to_string(MISTAKES)?) {
        Ok(all) => all,
        Err(wrong) => return Ok(vec![wrong]),
    };
    let mut sources = sources(Path::new(CORE))?;
    let wrong = all
        .iter()
        .flat_map(|mistake| mistake.put_into(&mut sources));
    let wrong: Vec<String> = wrong.collect();
    let root = sources.get_mut("lib.rs").expect("core has a root");
    *root = format!("{}pub mod planted;\n", without_inner(root));
    sources.insert("planted.rs".to_owned(), switch(&all));

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("core");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    for (path, text) in &sources {
        let path = out.join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder"))?;
        // Core's tests run in core.
        fs::write(path, text.replace("#[cfg(test)]", "#[cfg(false)]"))?;
    }
    Ok(wrong)
}

/// All files below the folder, by their path in it.
fn sources(folder: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("it is below the folder");
                found.insert(
                    name.to_string_lossy().into_owned(),
                    fs::read_to_string(&path)?,
                );
            }
        }
    }
    Ok(found)
}

/// The root without inner attributes and docs, which an included file may not have.
fn without_inner(root: &str) -> String {
    let inner = |line: &&str| line.starts_with("//!") || line.starts_with("#![");
    let lines = root.lines().filter(|line| !inner(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The module that says which mistake is on.
fn switch(all: &[Mistake]) -> String {
    let names: Vec<&str> = all.iter().map(|mistake| mistake.name.as_str()).collect();
    let words = all
        .iter()
        .map(|mistake| format!("Mistake::{} => {:?},\n", mistake.name, mistake.words));
    format!(
        "//! Which mistake is on in this thread.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {{ {names} }}

impl Mistake {{
    pub const ALL: &[Mistake] = &[{all}];

    /// The mistake as a sentence for people.
    pub fn words(self) -> &'static str {{
        match self {{ {words} }}
    }}
}}

thread_local! {{
    static ON: std::cell::Cell<Option<Mistake>> = const {{ std::cell::Cell::new(None) }};
}}

/// Puts this mistake into all decisions of this thread. `None` removes it.
pub fn plant(mistake: Option<Mistake>) {{
    ON.set(mistake);
}}

pub(crate) fn on(mistake: Mistake) -> bool {{
    ON.get() == Some(mistake)
}}
",
        names = names.join(", "),
        all = names
            .iter()
            .map(|name| format!("Mistake::{name}, "))
            .collect::<String>(),
        words = words.collect::<String>(),
    )
}
