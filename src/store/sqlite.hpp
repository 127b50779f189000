// SQLite with our errors: prepared statements, transactions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ds4/error.hpp"
#include "store/hash128.hpp"

struct sqlite3;
struct sqlite3_stmt;

namespace ds4::store {

/// A statement at work. Ends with the object.
class Query {
 public:
  Query(sqlite3* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}
  Query(Query&& other) noexcept;
  Query& operator=(Query&&) = delete;
  ~Query();

  /// True: there is a row.
  Result<bool> step();
  int64_t integer(int column) const;
  double real(int column) const;
  std::span<const std::byte> blob(int column) const;  // until the next step
  std::optional<Hash128> hash(int column) const { return Hash128::from_bytes(blob(column)); }

  void bind(int place, int64_t value);
  void bind(int place, double value);
  void bind(int place, std::span<const std::byte> value);
  void bind(int place, const Hash128& value) { bind(place, std::as_bytes(std::span(value.bytes))); }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_;
};

/// One connection, for one thread at a time. Errors: `format` whenever the file is not what it should be;
/// io for what the system or another process is the reason of.
class Database {
 public:
  /// Creates the file if it is missing.
  static Result<Database> open(const std::string& path);

  /// Several statements without values.
  Result<void> execute(const char* sql);
  /// `sql` is a literal: statements are kept by its address. At most one query of a statement at a time.
  template <class... Values>
  Result<Query> query(const char* sql, const Values&... values) {
    auto made = prepare(sql);
    int place = 0;
    if (made) (made->bind(++place, values), ...);
    return made;
  }
  /// A statement without rows.
  template <class... Values>
  Result<void> run(const char* sql, const Values&... values) {
    auto made = query(sql, values...);
    if (!made) return made.error();
    if (auto done = made->step(); !done) return done.error();
    return {};
  }
  int64_t last_id() const;

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  explicit Database(sqlite3* handle) : handle_(handle) {}
  Result<Query> prepare(const char* sql);

  std::unique_ptr<sqlite3, Close> handle_;
  std::map<const void*, std::unique_ptr<sqlite3_stmt, Finalize>> statements_;
};

/// Rolls back unless committed.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();

  Result<void> commit();

 private:
  explicit Transaction(Database& database) : database_(&database) {}
  Database* database_;
};

}  // namespace ds4::store
