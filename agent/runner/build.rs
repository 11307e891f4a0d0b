//! The runner's commit, put into the build exactly as the other programs' is.

#[path = "../../runtime/build.rs"]
mod stamp;

fn main() {
    stamp::main();
}
