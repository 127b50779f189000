# Runs one file of tests where prepare.cmake has put it. cmake -D OUTPUT_DIR=... -D TEST=name -P run.cmake
if(EXISTS "${OUTPUT_DIR}/skipped")
  file(READ "${OUTPUT_DIR}/skipped" reason)
  message("SKIPPED: ${reason}")
  return()
endif()
execute_process(COMMAND node --test --test-reporter=spec "${TEST}_test.mjs" WORKING_DIRECTORY "${OUTPUT_DIR}"
                COMMAND_ERROR_IS_FATAL ANY)
