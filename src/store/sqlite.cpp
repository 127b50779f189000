#include "store/sqlite.hpp"

#include <sqlite3.h>

#include "base/error.hpp"

namespace ds4::store {
namespace {

constexpr int patience_ms = 5000;  // with another process that writes

Error error_of(sqlite3* database, int code) {
  const char* text = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  const int extended = database != nullptr ? sqlite3_extended_errcode(database) : code;
  switch (code & 0xff) {
    case SQLITE_NOMEM:
      return fail(ErrorCode::out_of_memory, "not enough memory for the index");
    case SQLITE_IOERR:
      // A page that ends too early is a file that was cut.
      if (extended == SQLITE_IOERR_SHORT_READ) break;
      [[fallthrough]];
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_INTERRUPT:
    case SQLITE_PROTOCOL:  // too many at once for the locks of the journal
      return fail(ErrorCode::io, "the index cannot be used: {}", text);
    default:
      // Also SQLITE_READONLY: another file is in its place, or its header says so.
      break;
  }
  return fail(ErrorCode::format, "the index is damaged: {}", text);
}

}  // namespace

Query::Query(Query&& other) noexcept
    : database_(other.database_), statement_(std::exchange(other.statement_, nullptr)) {}

Query::~Query() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

Result<bool> Query::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return error_of(database_, code);
}

int64_t Query::integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

double Query::real(int column) const {
  return sqlite3_column_double(statement_, column);
}

std::span<const std::byte> Query::blob(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int bytes = sqlite3_column_bytes(statement_, column);
  if (data == nullptr || bytes <= 0) return {};
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)};
}

void Query::bind(int place, int64_t value) {
  sqlite3_bind_int64(statement_, place, value);
}

void Query::bind(int place, double value) {
  sqlite3_bind_double(statement_, place, value);
}

void Query::bind(int place, std::span<const std::byte> value) {
  // A null pointer would be NULL, which is something else than nothing.
  const void* data = value.empty() ? static_cast<const void*>("") : value.data();
  sqlite3_bind_blob64(statement_, place, data, value.size(), SQLITE_TRANSIENT);
}

void Database::Close::operator()(sqlite3* database) const {
  sqlite3_close_v2(database);
}

void Database::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

Result<Database> Database::open(const std::string& path) {
  sqlite3* handle = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW;
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  Database database(handle);
  if (code != SQLITE_OK) return error_of(handle, code);
  sqlite3_busy_timeout(handle, patience_ms);
  // Damage must not reach code that trusts the file, and no row needs to be large.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, 1 << 20);
  // Another process may have put a new index in this one's place: its journal must not be removed with ours.
  int keep = 1;
  sqlite3_file_control(handle, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
  return database;
}

Result<void> Database::execute(const char* sql) {
  const int code = sqlite3_exec(handle_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return error_of(handle_.get(), code);
  return {};
}

Result<Query> Database::prepare(const char* sql) {
  auto& statement = statements_[sql];
  if (!statement) {
    sqlite3_stmt* made = nullptr;
    const int code = sqlite3_prepare_v3(handle_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &made, nullptr);
    if (code != SQLITE_OK) return error_of(handle_.get(), code);
    statement.reset(made);
  }
  return Query(handle_.get(), statement.get());
}

int64_t Database::last_id() const {
  return sqlite3_last_insert_rowid(handle_.get());
}

Result<Transaction> Transaction::begin(Database& database) {
  DS4_TRY(database.execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) (void)database_->execute("ROLLBACK");
}

Result<void> Transaction::commit() {
  DS4_TRY(database_->execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace ds4::store
