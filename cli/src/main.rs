//! `muster`: see the library of this package.

fn main() -> std::process::ExitCode {
    muster_cli::main()
}
