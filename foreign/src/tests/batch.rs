//! Batch scripts of Slurm: what each becomes, that every line has a verdict, and that no damage is fatal.

use std::fs;

use super::{folder, options};
use crate::{Options, Reading, Verdict, is_batch_script, read_batch_script};

/// The names of all scripts, and their texts.
fn scripts() -> Vec<(String, String)> {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let mut scripts: Vec<(String, String)> = files
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix(".sbatch")?.to_owned();
            Some((name, fs::read_to_string(&path).unwrap()))
        })
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 12, "the scripts have moved");
    scripts
}

fn read_script(name: &str, text: &str) -> Reading {
    assert!(is_batch_script(text), "{name}");
    let options = Options {
        file: format!("{name}.sbatch"),
        here: "/home/ada/runs".into(),
        ..options(name)
    };
    read_batch_script(text, &options)
}

/// `MUSTER_BLESS=1` writes the files anew. Read the difference: it is what users get.
#[test]
fn each_batch_script_becomes_what_is_written_beside_it() {
    let mut wrong = Vec::new();
    for (name, text) in scripts() {
        let reading = read_script(&name, &text);
        let is = super::shown(&name, &reading).replace(".yaml:", ".sbatch:");
        let golden = folder().join(format!("{name}.out"));
        if std::env::var_os("MUSTER_BLESS").is_some() {
            fs::write(&golden, &is).unwrap();
        }
        let must = fs::read_to_string(&golden).unwrap_or_default();
        if is != must {
            let differs = is.lines().zip(must.lines()).find(|(one, two)| one != two);
            wrong.push(format!("{name}: {differs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
