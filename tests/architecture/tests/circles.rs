//! The files of a room need each other in one direction only: no two of them need each other.

use std::{collections::BTreeSet, fs};

use muster_architecture::{expect_none, root, uses::Room};

/// The rooms that are held, and the fewest units that each has. A room that has moved must not pass
/// because nothing is found in it.
const ROOMS: [(&str, usize); 11] = [
    ("agent/src/", 20),
    ("agent/src/probe/", 15),
    ("cli/src/output/", 8),
    ("coordinator/src/", 10),
    ("coordinator/src/api/", 14),
    ("core/src/fleet/", 30),
    ("foreign/src/", 14),
    ("handle/src/", 4),
    ("operator/src/jobs/", 3),
    ("operator/src/rules/", 4),
    ("steps/src/", 6),
];

/// Rooms whose own file has words that its units share. The units themselves need each other in one
/// direction only.
const SHARING: [(&str, usize); 15] = [
    ("agent/runner/src/", 9),
    ("agent/src/supervisor/", 3),
    ("agent/tcpstore/src/", 6),
    ("cli/src/local/", 7),
    ("coordinator/src/audit/", 4),
    ("coordinator/src/kubernetes/", 4),
    ("coordinator/src/store/", 3),
    ("core/src/", 12),
    ("core/src/health/", 4),
    ("core/src/node/", 9),
    ("core/src/node_report/", 3),
    ("foreign/src/kinds/", 6),
    ("foreign/src/pod/", 4),
    ("operator/src/", 13),
    ("operator/src/adopt/", 6),
];

#[test]
fn no_two_files_of_a_room_need_each_other() {
    let mut wrong = Vec::new();
    for (folder, units) in ROOMS.into_iter().chain(SHARING) {
        let room = Room::read(folder);
        assert!(room.needs.len() >= units, "the room has moved: {folder}");
        let needs: usize = room.needs.values().map(BTreeSet::len).sum();
        let found = needs + room.from_above.len();
        assert!(found >= units, "only {found} uses were found in {folder}");
        let in_room = |way: String| format!("{folder}: {way}");
        wrong.extend(room.circles().into_iter().map(in_room));
    }
    expect_none(
        &wrong,
        "move what both need into a file that stands below both",
    );
}

/// Files that stand in a circle if `self.method()` counts as a use of the file that has the method. The list
/// only shrinks.
const CALLING_IN_CIRCLES: [(&str, &str); 3] = [
    ("agent/src/supervisor/", "lanes"),
    ("agent/src/supervisor/", "reports"),
    ("agent/src/supervisor/", "standbys"),
];

/// The methods of one type may lie in several files, and no path shows that one of them calls another.
#[test]
fn no_two_files_of_a_room_need_each_other_through_self() {
    let (mut wrong, mut calls) = (Vec::new(), 0);
    let mut allowed = CALLING_IN_CIRCLES.to_vec();
    for (folder, _) in ROOMS.into_iter().chain(SHARING) {
        let room = Room::read(folder);
        calls += room.calls.values().map(BTreeSet::len).sum::<usize>();
        for way in room.circles_with_calls() {
            let unit = way.split(' ').next().unwrap_or_default();
            match allowed.iter().position(|known| *known == (folder, unit)) {
                Some(at) => drop(allowed.swap_remove(at)),
                None => wrong.push(format!("{folder}: {way}")),
            }
        }
    }
    let stale = allowed.iter();
    wrong.extend(stale.map(|(folder, unit)| {
        format!("{folder}{unit} is in no circle: take it off the list CALLING_IN_CIRCLES")
    }));
    assert!(calls >= 40, "only {calls} calls of other files were found");
    expect_none(
        &wrong,
        "let one of them be a plain function over what it reads, or move what both need into a file below both",
    );
}

#[test]
fn a_file_of_a_room_names_the_file_it_needs() {
    let wrong: Vec<String> = ROOMS
        .iter()
        .flat_map(|(folder, _)| Room::read(folder).from_above)
        .collect();
    expect_none(
        &wrong,
        "name the file: fleet::policy::Policy. What only the room's own file has belongs into a file",
    );
}

/// The table at the top of a room's own file, read from above. Each file of the room has its place
/// there, and what it needs stands above it.
#[test]
fn the_table_of_the_brain_goes_from_values_up() {
    let page = fs::read_to_string(root().join("core/src/fleet.rs")).expect("the brain is there");
    let rows = page.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let table: Vec<&str> = rows
        .map(|row| row.split(" | ").next().unwrap_or_default())
        .flat_map(|names| names.split(", ").map(|name| name.trim_matches('`')))
        .collect();
    let room = Room::read("core/src/fleet/");
    let place = |name: &str| table.iter().position(|row| *row == name);
    let mut wrong = Vec::new();
    for (file, needs) in &room.needs {
        let Some(at) = place(file) else {
            wrong.push(format!("{file} has no row"));
            continue;
        };
        let below = needs.iter().filter(|need| place(need) > Some(at));
        wrong.extend(below.map(|need| format!("{file} needs {need}, which stands below it")));
    }
    let gone = table.iter().filter(|row| !room.needs.contains_key(**row));
    wrong.extend(gone.map(|row| format!("{row} is no file of the room")));
    let mut once = BTreeSet::new();
    let twice = table.iter().filter(|row| !once.insert(**row));
    wrong.extend(twice.map(|row| format!("{row} has two rows")));
    expect_none(
        &wrong,
        "put the row where it belongs, or what is needed into a file above",
    );
}
