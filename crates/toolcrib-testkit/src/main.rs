//! The scripted server as a program: the script is its only argument.

fn main() -> std::process::ExitCode {
    toolcrib_testkit::serve_stdio()
}
