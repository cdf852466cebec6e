//! Compiles the protocol definitions without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTOS: [&str; 4] =
        ["proto/snapshot.proto", "proto/registry.proto", "proto/event.proto", "proto/admin.proto"];
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure()
        .bytes(".ibsa.snapshot.v1")
        .bytes(".ibsa.registry.v1")
        .bytes(".ibsa.event.v1")
        .compile_fds(protox::compile(PROTOS, ["proto"])?)?;
    Ok(())
}
