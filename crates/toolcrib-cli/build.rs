//! Compresses the files of the dashboard, so that the program contains them as they are sent, compressed or not.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, Crc, GzBuilder};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let source = Path::new("ui");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", source.display());
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut table = "&[\n".to_owned();
    for (index, file) in find_files(source)?.iter().enumerate() {
        println!("cargo::rerun-if-changed={}", file.display());
        let content = fs::read(file)?;
        let compressed = out.join(format!("{index}.gz"));
        fs::write(&compressed, compress(&content)?)?;
        writeln!(
            table,
            "    StaticFile {{ path: {:?}, content_type: {:?}, etag: {:?}, content: include_bytes!({:?}), gzip: include_bytes!({:?}) }},",
            url_path(file.strip_prefix(source)?),
            content_type(file)?,
            entity_tag(&content),
            fs::canonicalize(file)?,
            compressed,
        )?;
    }
    fs::write(out.join("dashboard_files.rs"), table + "]\n")?;
    Ok(())
}

/// Returns every file below a folder, sorted by path.
fn find_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(find_files(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the path of the URL: the page itself is at the root.
fn url_path(file: &Path) -> String {
    match file.to_string_lossy().as_ref() {
        "index.html" => "/".to_owned(),
        path => format!("/ui/{path}"),
    }
}

fn content_type(file: &Path) -> Result<&'static str> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("html") => Ok("text/html; charset=utf-8"),
        Some("css") => Ok("text/css; charset=utf-8"),
        Some("js") => Ok("text/javascript; charset=utf-8"),
        Some("svg") => Ok("image/svg+xml"),
        _ => Err(format!("no media type is known for {}", file.display()).into()),
    }
}

fn entity_tag(content: &[u8]) -> String {
    let mut crc = Crc::new();
    crc.update(content);
    format!("\"{:08x}-{:x}\"", crc.sum(), content.len())
}

/// Compresses without a time stamp, so that builds are the same.
fn compress(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}
