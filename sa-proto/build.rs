//! Compiles the protocol definitions without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTOS: [&str; 2] = ["proto/snapshot.proto", "proto/admin.proto"];
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure()
        .bytes(".ibsa.snapshot.v1")
        .compile_fds(protox::compile(PROTOS, ["proto"])?)?;
    Ok(())
}
