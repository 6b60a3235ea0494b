//! Debug builds stay where they were linked: elsewhere each start writes a hundred and fifty thousand addresses anew, which is
//! half of its time, and tests start thousands of programs.

fn main() {
    println!("cargo::rerun-if-env-changed=PROFILE");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo::rustc-link-arg=-no-pie");
    }
}
