// Files and folders of the disk store: where they lie, how they are written so that a crash leaves a file
// whole or absent, and how they are read without trust.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "store/hash128.hpp"
#include "store/store_format.hpp"

namespace ds4::store {

/// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int get() const { return number_; }
  bool valid() const { return number_ >= 0; }
  void close();

 private:
  int number_;
};

/// A file opened for reading; it can be removed meanwhile without harm.
struct InputFile {
  Descriptor descriptor;
  std::string path;
  uint64_t bytes = 0;

  /// Errors: not_found, io. A link or something that is no file is a format error.
  static Result<InputFile> open(const std::string& path);
  /// Fills `out`; a file that ends before is a format error.
  Result<void> read(uint64_t offset, std::span<std::byte> out) const;
  /// Its header with its true length.
  Result<std::vector<std::byte>> read_header(FileKind kind) const;
};

/// A file that is written under a temporary name. Destruction without commit() removes it.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& temporary_path);
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Result<void> write(uint64_t offset, std::span<const std::byte> bytes);
  /// On the disk, then under its name. That the name is on the disk is sync_folder()'s business.
  Result<void> commit(const std::string& path);

 private:
  OutputFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}
  Descriptor descriptor_;
  std::string path_;  // empty once committed
};

/// The names in a folder reach the disk.
Result<void> sync_folder(const std::string& path);

/// Error: io, with what the system says about `errno`.
Error system_error(const char* what, const std::string& path, int number);

/// True for what lies in the file. Whatever else keeps a file from being read may be over in a moment, so
/// the file stays.
bool is_damage(const Error& error);

/// Held by whoever writes, removes, or rebuilds the index; by one process at a time.
class WriterLock {
 public:
  /// Errors: io, also when another process holds it for longer than `patience`.
  static Result<WriterLock> acquire(const std::string& path, std::chrono::milliseconds patience);

 private:
  explicit WriterLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  Descriptor descriptor_;  // the lock ends with it
};

/// The folder of a store.
class StoreFolder {
 public:
  /// Creates what is missing, 0700. Errors: io; invalid_argument for a folder that is not only ours: of
  /// somebody else, one that others can write to, or can read and that holds something else, or one with
  /// another program's index.sqlite. A link to the folder itself is followed.
  static Result<StoreFolder> open(const std::string& root);
  /// True if some of what open() makes is there; somebody may have removed the rest.
  static bool is_one(const std::string& root);
  /// Creates again what somebody has removed meanwhile. Errors: as open().
  Result<void> restore() const;

  const std::string& root() const { return root_; }
  std::string index_path() const { return root_ + "/index.sqlite"; }
  std::string lock_path() const { return root_ + "/lock"; }
  std::string path_of(FileKind kind, const Hash128& name) const;
  std::string pin_path(const Hash128& frontier) const;

  /// For a file that is not there yet. Precondition: the writer's lock is held.
  Result<OutputFile> create(FileKind kind, const Hash128& name) const;
  /// Gives it its name, and makes sure that the folder of that exists.
  Result<void> commit(OutputFile& file, FileKind kind, const Hash128& name) const;
  Result<void> sync_folder_of(FileKind kind, const Hash128& name) const;
  /// True if it is gone afterwards.
  bool remove(FileKind kind, const Hash128& name) const;

  struct Found {
    FileKind kind = FileKind::segment;
    Hash128 name;
    uint64_t bytes = 0;
  };
  /// Every file with a name as ours have. Error: io, if a folder cannot be read to its end.
  Result<std::vector<Found>> scan() const;
  Result<std::vector<Hash128>> scan_pins() const;
  /// Files that a writer did not finish, and nothing else. Precondition: the writer's lock is held.
  void remove_temporary() const;
  /// The index with what belongs to it.
  uint64_t index_bytes() const;

 private:
  explicit StoreFolder(std::string root) : root_(std::move(root)) {}
  static Result<void> prepare(const std::string& place);
  std::string folder_of(FileKind kind, const Hash128& name) const;
  std::string root_;
};

}  // namespace ds4::store
